"""A language model that answers from a landscape, so that compiles on one go the whole way through DSPy."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import dspy
import numpy as np
from dspy import lm15
from landscapes import Landscape

from plr_dspy import PLReorder, Report

NAMES = re.compile(r"^(?:demo |example |n)(\d+)\b", re.MULTILINE)
"""How the texts of demos and of the example begin, which comes last: their numbers in the landscape stand for them."""


class ReplayEngine:
    """Answers in the format of DSPy's `ChatAdapter`, with log-probabilities of labels where a request asks for them.

    A label is one token, and those of other labels are the likeliest in its place; the rest of a reply is certain. It
    counts its calls, and those of them that were told log-probabilities.
    """

    def __init__(self, landscape: Landscape, labels: Sequence[str]) -> None:
        self._landscape, self._labels = landscape, list(labels)
        self.calls = self.told = 0
        self._lock = threading.Lock()

    def complete(self, request: Any) -> Any:
        """Answer a request."""
        texts = [message.text or "" for message in request.messages]
        *order, example = [int(number) for text in texts for number in NAMES.findall(text)]
        values = self._landscape.told(tuple(order), example)
        likeliest = np.argsort(-values, kind="stable")
        head, label, tail = "[[ ## label ## ]]\n", self._labels[likeliest[0]], "\n\n[[ ## completed ## ]]"
        choice: dict[str, Any] = {"message": {"role": "assistant", "content": head + label + tail}}
        most = request.config.logprobs
        if most is not None:
            tops = [{"token": self._labels[i], "logprob": float(values[i])} for i in likeliest[:most]]
            places = [{"token": head, "logprob": 0.0}], tops, [{"token": tail, "logprob": 0.0}]
            choice["logprobs"] = {"content": [{**told[0], "top_logprobs": told} for told in places]}
        with self._lock:
            self.calls += 1
            self.told += most is not None
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        reply = {"id": "replay", "model": "replay", "choices": [choice | {"finish_reason": "stop"}]}
        return lm15.response_from_openai_chat(reply | {"usage": usage}, model=request.model)


def metric(example: dspy.Example, prediction: dspy.Prediction, trace: object = None) -> bool:
    """Whether the label is the right one."""
    return bool(example.label == prediction.label)


def replayed_program(landscape: Landscape, labels: Sequence[str]) -> dspy.Predict:
    """A program of one label, whose demos are those of a landscape in their original order."""
    output = (Literal[tuple(labels)], dspy.OutputField())
    program = dspy.Predict(dspy.Signature({"text": (str, dspy.InputField()), "label": output}))
    kinds = landscape.classes or []
    program.demos = [dspy.Example(text=f"demo {i}", label=labels[kind]) for i, kind in enumerate(kinds)]
    return program


def replayed_examples(landscape: Landscape, labels: Sequence[str]) -> list[dspy.Example]:
    """The examples of a landscape with their right labels."""
    return [
        dspy.Example(text=f"example {i}", label=labels[right]).with_inputs("text")
        for i, right in enumerate(landscape.right_labels)
    ]


def shown_order(program: dspy.Module) -> tuple[int, ...]:
    """The demos that a program of one predictor shows, by their numbers in the landscape."""
    (predictor,) = program.predictors()
    return tuple(int(demo["text"].removeprefix("demo ")) for demo in predictor.demos)


@contextmanager
def replaying(landscape: Landscape, labels: Sequence[str]) -> Iterator[ReplayEngine]:
    """Answer the calls of DSPy's programs from a landscape."""
    engine = ReplayEngine(landscape, labels)
    lm = dspy.LM("openai/replay", engine=engine, cache=False, num_retries=0)
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter(), disable_history=True):
        yield engine


def compiled_through_dspy(
    landscape: Landscape, *, num_known: int, signal: str, budget: int, seed: int
) -> tuple[tuple[int, ...], Report]:
    """Compile a program whose language model answers from a landscape, of which it knows the first examples.

    Returns:
        The order that the compiled program shows, and the report, whose calls are those that the model answered.
    """
    labels = [f"label {i}" for i in range(landscape.num_labels)]
    options = {"max_metric_calls": budget, "num_threads": 1, "seed": seed, "display_progress": False}
    optimizer = PLReorder(metric, signal=signal, **options)
    with replaying(landscape, labels) as engine:
        trainset = replayed_examples(landscape, labels)[:num_known]
        program = optimizer.compile(replayed_program(landscape, labels), trainset=trainset)
    report = optimizer.report
    assert report is not None and report.signal is not None and report.signal.used == signal
    assert engine.calls == report.program_calls["total"] <= budget
    assert engine.told == (engine.calls if signal == "logprobs" else 0)
    return shown_order(program), report
