"""Engines that answer with labels from known distributions."""

from __future__ import annotations

import json
import math
import re
import threading
from typing import Any, Literal

import dspy
from dspy import lm15
from fakes import FIELD, LabelEngine, Program, chat_response, digest

NOISE = {"the": 1e-4, "Hm": 1e-4}
LABELS = ["negative", "positive"]
KIND = Literal["negative", "positive"]
REFUSAL = lm15.InvalidRequestError("logprobs are not supported by this model", status=400)


def classifier(kind: Any = KIND, *, module=dspy.Predict, **config):
    signature = dspy.Signature("text -> label").with_updated_fields("label", type_=kind)
    return module(signature, **config)


def around(call: Any) -> Program:
    """Return a program that answers with the result of `call(classify, text)`."""
    return Program(lambda self, text: call(self.predict, text), predict=classifier())


def exact(example, prediction, trace=None):
    return example.label == prediction.label


class Classifier(LabelEngine):
    """An engine that answers with labels in the format that the adapter asks for.

    Args:
        probabilities: Returns a distribution over labels for a text. Labels with probability
            0 are not among the likeliest tokens.
        unreadable: Returns whether the reply to a text is unparsable.
    """

    def __init__(self, probabilities, *, unreadable=lambda text: False, **options):
        super().__init__([], probabilities, **options)
        self.unreadable = unreadable

    @property
    def inputs(self) -> list[str]:
        return [self.text_of(prompt[-1]) for prompt in self.prompts]

    @staticmethod
    def text_of(last: str) -> str:
        fields = FIELD.findall(last)
        return fields[0][1].strip() if fields else re.findall(r"Text: (.*)", last)[-1]

    def tops(self, texts: tuple[str, ...], wanted: list[str]) -> list[dict[str, float]]:
        last = texts[-1]
        text = self.text_of(texts[-1])
        shares = self.probabilities(text)
        answer = {label: share for label, share in shares.items() if share > 0} | NOISE
        if self.unreadable(text):
            before = [{"I would think that it is ": 1.0}, answer, {", as all do.": 1.0}]
            return before if len(wanted) < 2 else [{"Let me see": 1.0}]
        if wanted:
            others = [{f"[[ ## {name} ## ]]\nbecause\n\n": 1.0} for name in wanted[:-1]]
            header = f"[[ ## {wanted[-1]} ## ]]\n"
            footer = "\n\n[[ ## completed ## ]]"
            return [*others, {header: 1.0}, answer, {footer: 1.0}]
        if "JSON" in last:
            names = re.findall(r"`(\w+)`", last.split("order of fields: ")[1])
            others = [{f'"{name}": "because", ': 1.0} for name in names[:-1]]
            return [{"{": 1.0}, *others, {f'"{names[-1]}": "': 1.0}, answer, {'"}': 1.0}]
        return [{f" {token}": share for token, share in answer.items()}]


def normal(text: str) -> float:
    """Return a number for a text. Over many texts, the numbers are roughly standard normal."""
    return sum(digest(f"{text} {i}") for i in range(12)) - 6


def softmax(scores: dict[str, float]) -> dict[str, float]:
    largest = max(scores.values())
    weights = {label: math.exp(score - largest) for label, score in scores.items()}
    return {label: weight / sum(weights.values()) for label, weight in weights.items()}


def leaning(labels: list[str], lean: float) -> Any:
    """Return a function that maps texts to label probabilities biased towards the last label."""

    def probabilities(text: str) -> dict[str, float]:
        scores = {label: 1.5 * normal(f"{text} {label}") for label in labels}
        scores[labels[-1]] += lean
        return softmax(scores)

    return probabilities


def gold(labels: list[str], text: str) -> str:
    """Draw a text's correct label from the unbiased label probabilities."""
    p = leaning(labels, 0.0)(text)
    at = digest(f"right {text}")
    for label, share in p.items():
        at -= share
        if at < 0:
            return label
    return labels[-1]


def stripped_fields(text: str) -> dict[str, str]:
    return {name: value.strip() for name, value in FIELD.findall(text)}


class Decider:
    """An engine for DSPy's decision outputs. Its replies state probabilities.

    For any other output, the reply is the likeliest label.

    Args:
        probabilities: Returns a distribution over the options, given the demos' fields and the
            input's text. Replies round the probabilities to two decimals.
        labels: The labels for other outputs.
    """

    def __init__(self, probabilities, labels=("negative", "positive")):
        self.probabilities = probabilities
        self.labels = labels
        self.prompts: list[tuple[str, str]] = []
        self.asked: list[bool] = []
        self._lock = threading.Lock()

    def complete(self, request: Any) -> Any:
        *before, last = [message.text or "" for message in request.messages]
        listed = re.search(r"Task examples \(labels or evidence\):\s*(\[.*\])", request.system)
        demos = listed[1] if listed else json.dumps(list(map(stripped_fields, before[::2])))
        text = FIELD.findall(last)[0][1].strip()
        with self._lock:
            self.prompts.append((demos, text))
            self.asked.append(request.config.logprobs is not None)
        exact_shares = self.probabilities(json.loads(demos), text)
        p = [round(share, 2) for share in exact_shares]
        schema = request.system.replace('\\"', '"')
        options = re.search(r'"required": \[([^\]]*)\], "title": "\w+Probabilities"', schema)
        if options:
            names = json.loads(f"[{options[1]}]")
            said = {"probabilities": dict(zip(names, p, strict=True)), "confidence": 0.5}
        else:
            said = {"noul": p[-1]} if "NoulEvidence" in schema else None
        value = json.dumps(said) if said else self.labels[p.index(max(p))]
        outputs = schema.split("output fields are:")[1].split("All inter")[0]
        *others, name = re.findall(r"`(\w+)`", outputs)
        fields = dict.fromkeys(others, "because")
        if "JSON object" in schema:
            return chat_response(json.dumps({**fields, name: said or value}))
        fields[name] = value
        body = "\n\n".join(f"[[ ## {name} ## ]]\n{value}" for name, value in fields.items())
        return chat_response(f"{body}\n\n[[ ## completed ## ]]")


def ask(engine, program, adapter=None, **inputs):
    with dspy.context(lm=engine.lm(), adapter=adapter or dspy.ChatAdapter()):
        return program(**(inputs or {"text": "a text of its own"}))
