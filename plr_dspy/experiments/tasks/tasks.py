"""The eight tasks of the paper, as DSPy signatures and metrics."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args

import dspy

from plr_dspy.experiments.grading import lenient, same_expression, same_number
from plr_dspy.experiments.names import Format, MetricName
from plr_dspy.lm.plain_text_adapter import PlainTextAdapter

TaskMetric: TypeAlias = Callable[..., bool]


@dataclass(frozen=True)
class Task:
    """A task: what is asked, and when an answer is right.

    Attributes:
        name: Name on the command line and in file names.
        title: Name in texts for people.
        input_field, output_field: Names of the fields; as titles they make the plain prompt.
        instructions: What chat models are told; plain prompts show no instructions.
        labels: All answers there are; empty where answers are open.
        answer_kind: What answers are, which decides how they are compared.
    """

    name: str
    title: str
    input_field: str
    output_field: str
    instructions: str
    labels: tuple[str, ...] = ()
    answer_kind: Literal["label", "number", "expression"] = "label"

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

        Raises:
            ValueError: for an unknown format; `adapter` and `max_tokens` raise it too.
        """
        if _check_choice("format", format, Format) == "chat" and self.reasoning:
            return dspy.ChainOfThought(self.signature)
        return dspy.Predict(self.signature)

    def adapter(self, format: Format) -> dspy.Adapter:
        """Make what renders prompts: plain prompts are the demos and the question alone."""
        if _check_choice("format", format, Format) == "plain":
            return PlainTextAdapter(show_instructions=False)
        return dspy.ChatAdapter()

    def max_tokens(self, format: Format) -> int:
        """Length of the longest answer, in tokens.

        A plain label ends at a line break, and a plain open answer at a blank line: the limit is for models that go
        on, and leaves room for a short solution. In chats a label stands between two markers.
        """
        plain = _check_choice("format", format, Format) == "plain"
        if self.reasoning:
            return 256 if plain else 1024
        return 16 if plain else 64

    def metric(self, name: MetricName = "strict") -> TaskMetric:
        """Make the function that says whether a prediction is right.

        Args:
            name: "strict", or "lenient" for the published code's way with open answers; labels must be equal in both.

        Returns:
            A function of example, prediction and trace.

        Raises:
            ValueError: for another name.
        """
        output, equal = self.output_field, self._equality(_check_choice("metric", name, MetricName))

        def metric(example: dspy.Example, prediction: dspy.Prediction, trace: Any = None) -> bool:
            answer = prediction.get(output)
            return isinstance(answer, str) and equal(answer, example[output])

        return metric

    def _equality(self, name: str) -> Callable[[str, str], bool]:
        """The function that compares a predicted answer with the gold one."""
        if not self.reasoning:
            return operator.eq
        if name == "lenient":
            return lenient
        return same_number if self.answer_kind == "number" else same_expression


def _check_choice(name: str, value: str, kind: Any) -> str:
    """The value, if it is one of a `Literal` type."""
    if value not in get_args(kind):
        raise ValueError(f"{name} must be one of {get_args(kind)}; got {value!r}")
    return value


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            *("mr", "MR", "review", "sentiment"),
            instructions="Say whether the movie review is negative or positive.",
            labels=("negative", "positive"),
        ),
        Task(
            *("sst5", "SST-5", "review", "sentiment"),
            instructions="Say how good the movie is by its review, from terrible to great.",
            labels=("terrible", "bad", "okay", "good", "great"),
        ),
        Task(
            *("trec", "TREC", "question", "type"),
            instructions="Say what kind of answer the question asks for.",
            labels=("Description", "Entity", "Abbreviation", "Human", "Location", "Number"),
        ),
        Task(
            *("agnews", "AG News", "article", "topic"),
            instructions="Say what the news article is about.",
            labels=("World", "Sports", "Business", "Tech"),
        ),
        Task(
            *("subj", "SUBJ", "input", "type"),
            instructions="Say whether the sentence about a movie is subjective (an opinion) or objective (the plot).",
            labels=("subjective", "objective"),
        ),
        Task(
            *("gsm8k", "GSM8K", "question", "answer"),
            instructions="Solve the problem. The answer is a number alone.",
            answer_kind="number",
        ),
        Task(
            *("math500", "MATH500", "question", "answer"),
            instructions="Solve the problem. The answer is the final expression alone, in LaTeX.",
            answer_kind="expression",
        ),
        Task(
            *("deepmath", "DeepMath", "question", "answer"),
            instructions="Solve the problem. The answer is the final expression alone, in LaTeX, or Yes or No.",
            answer_kind="expression",
        ),
    )
}
"""The tasks by name, in the order of the paper's tables."""
