"""The eight tasks of the paper, as DSPy signatures and metrics."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import dspy

from plr_dspy import PlainTextAdapter

from .answers import lenient, same_expression, same_number

Format: TypeAlias = Literal["plain", "chat"]
MetricName: TypeAlias = Literal["strict", "lenient"]


@dataclass(frozen=True)
class Task:
    """A task: its fields, labels and instructions, and the function that compares answers.

    Attributes:
        name: Name on the command line, in file names and in tables.
        input_field, output_field: Names of the fields. Plain prompts show them as titles.
        instructions: Instructions for chat models. Plain prompts show no instructions.
        labels: All possible answers, or an empty tuple if answers are open.
        same: Function that returns whether a predicted answer equals the gold answer.
    """

    name: str
    input_field: str
    output_field: str
    instructions: str
    labels: tuple[str, ...] = ()
    same: Callable[[str, str], bool] = operator.eq

    @property
    def reasoning(self) -> bool:
        """Whether answers are open, so that they need reasoning."""
        return not self.labels

    @cached_property
    def signature(self) -> Any:
        """The DSPy signature, with one input and one output: a `Literal` of the labels, or a string."""
        output: Any = Literal[self.labels] if self.labels else str
        fields = {
            self.input_field: (str, dspy.InputField()),
            self.output_field: (output, dspy.OutputField()),
        }
        return dspy.Signature(fields, self.instructions)

    def program(self, format: Format) -> dspy.Module:
        """Build the program whose demos are ordered.

        In chat format, open answers follow reasoning. Plain prompts ask for no reasoning, as in the paper.
        """
        if format == "chat" and self.reasoning:
            return dspy.ChainOfThought(self.signature)
        return dspy.Predict(self.signature)

    def adapter(self, format: Format) -> dspy.Adapter:
        """Build the adapter for a prompt format. Plain prompts have only the demos and the question."""
        if format == "plain":
            return PlainTextAdapter(show_instructions=False)
        return dspy.ChatAdapter()

    def max_tokens(self, format: Format) -> int:
        """Return the maximum number of tokens in an answer."""
        limits = {"plain": 256, "chat": 1024} if self.reasoning else {"plain": 16, "chat": 64}
        return limits[format]

    def metric(self, name: MetricName = "strict") -> Callable[..., bool]:
        """Build the metric. "lenient" scores open answers as the published code does."""
        output_field = self.output_field
        same = self.same
        if name == "lenient" and self.reasoning:
            same = lenient

        def metric(example: dspy.Example, prediction: dspy.Prediction, trace: Any = None) -> bool:
            answer = prediction.get(output_field)
            return isinstance(answer, str) and same(answer, example[output_field])

        return metric


def _math_task(name: str, instructions: str) -> Task:
    return Task(name, "question", "answer", instructions, same=same_expression)


_ALL = [
    Task(
        "mr",
        "review",
        "sentiment",
        "Say whether the movie review is negative or positive.",
        labels=("negative", "positive"),
    ),
    Task(
        "sst5",
        "review",
        "sentiment",
        "Say how good the movie is by its review, from terrible to great.",
        labels=("terrible", "bad", "okay", "good", "great"),
    ),
    Task(
        "trec",
        "question",
        "type",
        "Say what kind of answer the question asks for.",
        labels=("Description", "Entity", "Abbreviation", "Human", "Location", "Number"),
    ),
    Task(
        "agnews",
        "article",
        "topic",
        "Say what the news article is about.",
        labels=("World", "Sports", "Business", "Tech"),
    ),
    Task(
        "subj",
        "input",
        "type",
        "Say whether the sentence about a movie is subjective (an opinion) or objective (the plot).",
        labels=("subjective", "objective"),
    ),
    Task(
        "gsm8k", "question", "answer", "Solve the problem. The answer is a number alone.", same=same_number
    ),
    _math_task("math500", "Solve the problem. The answer is the final expression alone, in LaTeX."),
    _math_task(
        "deepmath", "Solve the problem. The answer is the final expression alone, in LaTeX, or Yes or No."
    ),
]
TASKS = {task.name: task for task in _ALL}
"""The tasks, keyed by name, in the order of the paper's tables."""

CLASSIFICATION = tuple(name for name, task in TASKS.items() if not task.reasoning)
"""The tasks whose answers are labels."""

REASONING = tuple(name for name, task in TASKS.items() if task.reasoning)
"""The tasks whose answers are open."""
