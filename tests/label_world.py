"""A classifier that returns log-probabilities, and whose label bias depends on the demos' order."""

from __future__ import annotations

import json
import math
from typing import Any

import dspy
from fakes import LabelEngine, Program, using
from label_engines import KIND, LABELS, classifier, exact, normal

from plr_dspy import PLReorder


def labeled(text: str, label: str) -> dspy.Example:
    return dspy.Example(text=text, label=label).with_inputs("text")


EXAMPLES = [labeled(f"text {i}", LABELS[i % 2]) for i in range(60)]
DEMOS = [dspy.Example(text=f"demo {i}", label=LABELS[i % 2]) for i in (0, 2, 4, 1, 3)]
FRESH = [f"text {i}" for i in range(1000, 1400)]
"""Held-out texts."""


def number(text: str) -> int:
    """Return the number at the end of a text. Texts with odd numbers are positive."""
    return int(text.split()[-1])


def two(z: float) -> list[float]:
    return [1 / (1 + math.exp(z)), 1 / (1 + math.exp(-z))]


def probabilities(demos: list[str], text: str) -> list[float]:
    """Return label probabilities biased towards the demos' labels. Later demos have more influence."""
    own = (1 if number(text) % 2 else -1) * 1.2 + 0.8 * normal(text)
    lean = 0
    for place, demo in enumerate(demos, start=1):
        lean += place if number(demo) % 2 else -place
    return two(own + 0.35 * lean + 0.3 * normal(f"{demos} {text}"))


class Engine(LabelEngine):
    def __init__(self, *, labels: Any = LABELS, probabilities: Any = probabilities, **options: Any) -> None:
        super().__init__(labels, probabilities, **options)


class Hesitant(Engine):
    """An engine whose replies are never a label, so that only calibrated answers can be right."""

    def tops(self, texts: Any, wanted: Any) -> Any:
        before, labels, after = super().tops(texts, wanted)
        return [before, {"perhaps": 1.0, **labels}, after]


def student(kind: Any = KIND, demos: Any = DEMOS) -> dspy.Predict:
    program = classifier(kind)
    program.demos = list(demos)
    return program


def go(
    engine: Any, *, program=None, trainset=EXAMPLES, valset=None, metric=exact, kind=PLReorder, **options
):
    defaults = {"max_metric_calls": 120, "num_threads": 1, "display_progress": False}
    optimizer = kind(metric, **{**defaults, **options})
    with using(engine, "fake/x"):
        compiled = optimizer.compile(program or student(), trainset=trainset, valset=valset)
    return compiled, optimizer.report


def comparable(report: Any, *omitted: str) -> dict[str, Any]:
    """Return a report as plain data, without the fields that may differ between equal compiles."""
    plain = json.loads(json.dumps(report.to_dict()))
    for name in ("seconds", *omitted):
        del plain[name]
    plain["program_calls"].pop("resumed", None)
    for name in ("signal", "num_threads", "max_errors"):
        plain["settings"].pop(name, None)
    return plain


def twice() -> Program:
    def ask_twice(self, text):  # type: ignore[no-untyped-def]
        self.predict(text=text)
        return self.predict(text=text)

    return Program(ask_twice, predict=student())


def whole_prediction(example: Any, prediction: Any, trace: Any = None) -> bool:
    return exact(example, prediction) and len(prediction.completions) > 0


def judged(example: Any, prediction: Any, trace: Any = None) -> bool:
    judge = dspy.Predict("text -> label: Literal['negative', 'positive']")
    return bool(judge(text=example.text).label == prediction.label)
