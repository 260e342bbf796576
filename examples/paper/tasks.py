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
    """A task: what is asked, and when an answer is right.

    Attributes:
        name: Its name on the command line, in file names and in tables.
        input_field, output_field: Names of the fields; as titles they make the plain prompt.
        instructions: What chat models are told; plain prompts show no instructions.
        labels: All answers there are; empty where answers are open.
        same: Whether a predicted answer is the gold one.
    """

    name: str
    input_field: str
    output_field: str
    instructions: str
    labels: tuple[str, ...] = ()
    same: Callable[[str, str], bool] = operator.eq

    @property
    def reasoning(self) -> bool:
        """Whether answers are open, and take some reasoning."""
        return not self.labels

    @cached_property
    def signature(self) -> Any:
        """DSPy signature with one input and one output: a `Literal` of the labels, or text."""
        output: Any = Literal[self.labels] if self.labels else str
        fields: dict[str, Any] = {
            self.input_field: (str, dspy.InputField()),
            self.output_field: (output, dspy.OutputField()),
        }
        return dspy.Signature(fields, self.instructions)

    def program(self, format: Format) -> dspy.Module:
        """Make the program to order: it answers at once, but that open answers follow a reasoning in chats.

        The paper's demos hold answers without reasoning, so plain prompts ask for none.
        """
        thinks = format == "chat" and self.reasoning
        return dspy.ChainOfThought(self.signature) if thinks else dspy.Predict(self.signature)

    def adapter(self, format: Format) -> dspy.Adapter:
        """Make what renders prompts: plain prompts are the demos and the question alone."""
        return PlainTextAdapter(show_instructions=False) if format == "plain" else dspy.ChatAdapter()

    def max_tokens(self, format: Format) -> int:
        """Length of the longest answer, in tokens; a plain one ends at a line break, an open one at a blank line."""
        if self.reasoning:
            return 256 if format == "plain" else 1024
        return 16 if format == "plain" else 64

    def metric(self, name: MetricName = "strict") -> Callable[..., bool]:
        """Make the function of example, prediction and trace that says whether a prediction is right.

        "lenient" is the published code's way with open answers; labels must be equal in both.
        """
        output, same = self.output_field, lenient if name == "lenient" and self.reasoning else self.same

        def metric(example: dspy.Example, prediction: dspy.Prediction, trace: Any = None) -> bool:
            answer = prediction.get(output)
            return isinstance(answer, str) and same(answer, example[output])

        return metric


_LATEX = "Solve the problem. The answer is the final expression alone, in LaTeX"
TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            *("mr", "review", "sentiment"),
            instructions="Say whether the movie review is negative or positive.",
            labels=("negative", "positive"),
        ),
        Task(
            *("sst5", "review", "sentiment"),
            instructions="Say how good the movie is by its review, from terrible to great.",
            labels=("terrible", "bad", "okay", "good", "great"),
        ),
        Task(
            *("trec", "question", "type"),
            instructions="Say what kind of answer the question asks for.",
            labels=("Description", "Entity", "Abbreviation", "Human", "Location", "Number"),
        ),
        Task(
            *("agnews", "article", "topic"),
            instructions="Say what the news article is about.",
            labels=("World", "Sports", "Business", "Tech"),
        ),
        Task(
            *("subj", "input", "type"),
            instructions="Say whether the sentence about a movie is subjective (an opinion) or objective (the plot).",
            labels=("subjective", "objective"),
        ),
        Task(
            *("gsm8k", "question", "answer"),
            instructions="Solve the problem. The answer is a number alone.",
            same=same_number,
        ),
        Task(*("math500", "question", "answer"), instructions=f"{_LATEX}.", same=same_expression),
        Task(*("deepmath", "question", "answer"), instructions=f"{_LATEX}, or Yes or No.", same=same_expression),
    )
}
"""The tasks by name, in the order of the paper's tables."""

CLASSIFICATION = tuple(name for name, task in TASKS.items() if task.labels)
"""The tasks whose answers are labels."""

REASONING = tuple(name for name, task in TASKS.items() if task.reasoning)
"""The tasks whose answers are open."""
