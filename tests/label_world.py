"""A classifier that tells log-probabilities, and leans to one label or the other by the order of its demos."""

from __future__ import annotations

import json
import math
from typing import Any

import dspy
from fakes import FIELD, WANTED, LabelEngine, Program, chat_response, logprobs_of, using
from label_engines import KIND, LABELS, classifier, exact, normal

from plr_dspy import PLReorder

EXAMPLES = [dspy.Example(text=f"text {i}", label=LABELS[i % 2]).with_inputs("text") for i in range(60)]
DEMOS = [dspy.Example(text=f"demo {i}", label=LABELS[i % 2]) for i in (0, 2, 4, 1, 3)]
FRESH = [f"text {i}" for i in range(1000, 1400)]
"""Texts that no compile has seen."""


def number(text: str) -> int:
    """The number at the end of a text; odd ones are positive."""
    return int(text.split()[-1])


def two(z: float) -> list[float]:
    """Probabilities of the labels whose log-odds are z."""
    return [1 / (1 + math.exp(z)), 1 / (1 + math.exp(-z))]


def probabilities(demos: list[str], text: str) -> list[float]:
    """Examples have an effect of their own, and later demos lean the more to their label, as in real models."""
    own = (1 if number(text) % 2 else -1) * 1.2 + 0.8 * normal(text)
    lean = sum((1 if number(demo) % 2 else -1) * (place + 1) for place, demo in enumerate(demos))
    return two(own + 0.35 * lean + 0.3 * normal(f"{demos} {text}"))


class Engine(LabelEngine):
    """Keeps prompts, and fails, refuses or is silent where it is told to.

    Attributes:
        prompts: Texts of each request in turn.
        asked: Whether it was asked for log-probabilities, for each request.
        at: What is done at the beginning of a call, by its number.
        silent: Numbers of the calls whose replies come without log-probabilities.
        prompt_tokens: Of each request, as the reply says: about those that there are.
    """

    def __init__(
        self, *, logprobs: bool = True, refusal: Any = None, labels: Any = LABELS, probabilities=probabilities
    ) -> None:
        super().__init__(labels, probabilities, logprobs=logprobs)
        self.refusal, self.at, self.silent = refusal, {}, set()
        self.prompt_tokens = 440
        self.prompts: list[tuple[str, ...]] = []
        self.asked: list[bool] = []

    def complete(self, request: Any) -> Any:
        with self._lock:
            count = len(self.prompts)
            self.prompts.append(tuple(message.text or "" for message in request.messages))
            self.asked.append(request.config.logprobs is not None)
        if count in self.at:
            self.at[count]()
        if self.refusal is not None and self.asked[count]:
            raise self.refusal
        tops = self.tops(self.prompts[count], WANTED.findall(self.prompts[count][-1]))
        told = self.logprobs and self.asked[count] and count not in self.silent
        said = "".join(max(top, key=top.__getitem__) for top in tops)
        return chat_response(said, prompt_tokens=self.prompt_tokens, logprobs=logprobs_of(tops) if told else None)

    def tops(self, texts: tuple[str, ...], wanted: list[str]) -> list[dict[str, float]]:
        """The tokens of a reply, each with the probabilities of what might stand there; the label comes last."""
        *others, last = [name for name in wanted if name != "completed"]
        shown, text = self.shown(texts)
        p = dict(zip(self.labels, self.probabilities(shown, text), strict=True))
        before = [{f"[[ ## {name} ## ]]\nbecause\n\n": 1.0} for name in others]
        return [*before, {f"[[ ## {last} ## ]]\n": 1.0}, p, {"\n\n[[ ## completed ## ]]": 1.0}]

    @staticmethod
    def shown(texts: tuple[str, ...]) -> tuple[list[str], str]:
        """The first fields of the demos, and of the input."""
        *demos, text = (FIELD.findall(text)[0][1].strip() for text in [*texts[:-1:2], texts[-1]])
        return demos, text


def student(kind: Any = KIND, demos: Any = DEMOS) -> dspy.Predict:
    program = classifier(kind)
    program.demos = list(demos)
    return program


def go(engine: Any, *, program=None, trainset=EXAMPLES, valset=None, metric=exact, kind=PLReorder, **options):
    """The program compiled, and the report."""
    optimizer = kind(metric, **{"max_metric_calls": 120, "num_threads": 1, "display_progress": False, **options})
    with using(engine, "fake/x"):
        compiled = optimizer.compile(program or student(), trainset=trainset, valset=valset)
    return compiled, optimizer.report


def found(report: Any, *but: str) -> dict[str, Any]:
    """What a report says, but for what may differ between two compiles of one kind."""
    plain = json.loads(json.dumps(report.to_dict()))
    for name in ("seconds", *but):
        del plain[name]
    plain["program_calls"].pop("resumed", None)
    for name in ("signal", "num_threads", "max_errors"):
        plain["settings"].pop(name, None)
    return plain


def twice() -> Program:
    """A program that asks its classifier twice for an answer."""
    return Program(lambda self, text: [self.predict(text=text) for _ in range(2)][-1], predict=student())


def whole_prediction(example: Any, prediction: Any, trace: Any = None) -> bool:
    """A metric that looks at more than the label."""
    return exact(example, prediction) and len(prediction.completions) > 0


def judged(example: Any, prediction: Any, trace: Any = None) -> bool:
    """A metric that asks a model."""
    judge = dspy.Predict("text -> label: Literal['negative', 'positive']")
    return bool(judge(text=example.text).label == prediction.label)
