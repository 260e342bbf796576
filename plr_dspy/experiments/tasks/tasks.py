"""The eight tasks of the paper, as DSPy signatures and metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args

import dspy

from plr_dspy.experiments.grading import lenient, same_expression, same_number
from plr_dspy.lm.plain_text_adapter import PlainTextAdapter

Format: TypeAlias = Literal["plain", "chat"]
MetricName: TypeAlias = Literal["strict", "lenient"]
TaskMetric: TypeAlias = Callable[..., bool]


@dataclass(frozen=True)
class Task:
    """What is asked, and when an answer is right.

    Attributes:
        name: On the command line and in file names.
        title: In tables.
        input_field, output_field: Names of the fields; as titles they make the plain prompt.
        instructions: For chat models; plain prompts show none.
        labels: All answers; none where answers are open.
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
        """One input and one output: a `Literal` of the labels, or text."""
        output: Any = Literal[self.labels] if self.labels else str
        fields: dict[str, Any] = {
            self.input_field: (str, dspy.InputField()),
            self.output_field: (output, dspy.OutputField()),
        }
        return dspy.Signature(fields, self.instructions)

    def program(self, format: Format) -> dspy.Module:
        """The program to order: it answers at once, but that open answers follow a reasoning in chats.

        The paper's demos hold answers without reasoning, so plain prompts ask for none.
        """
        if _known("format", format, Format) == "chat" and self.reasoning:
            return dspy.ChainOfThought(self.signature)
        return dspy.Predict(self.signature)

    def adapter(self, format: Format) -> dspy.Adapter:
        """What renders prompts: plain ones are the demos and the question alone."""
        if _known("format", format, Format) == "plain":
            return PlainTextAdapter(show_instructions=False)
        return dspy.ChatAdapter()

    def max_tokens(self, format: Format) -> int:
        """Longest answer, in tokens.

        A plain label ends at a line break, and a plain open answer at a blank line: the limit is for models that go
        on, and leaves room for a short solution. In chats a label stands between two markers.
        """
        plain = _known("format", format, Format) == "plain"
        if self.reasoning:
            return 256 if plain else 1024
        return 16 if plain else 64

    def metric(self, name: MetricName = "strict") -> TaskMetric:
        """What says whether a prediction is right.

        Args:
            name: "strict", or "lenient" for the published code's way with open answers; labels must be equal in both.

        Returns:
            A function of example, prediction and trace.

        Raises:
            ValueError: for another name.
        """
        output, equal = self.output_field, self._equality(_known("metric", name, MetricName))

        def metric(example: dspy.Example, prediction: dspy.Prediction, trace: Any = None) -> bool:
            answer = prediction.get(output)
            return isinstance(answer, str) and equal(answer, example[output])

        return metric

    def _equality(self, name: str) -> Callable[[str, str], bool]:
        if not self.reasoning:
            return _same_label
        if name == "lenient":
            return lenient
        return same_number if self.answer_kind == "number" else same_expression


def _same_label(predicted: str, gold: str) -> bool:
    return predicted == gold


def _known(name: str, value: str, kind: Any) -> str:
    if value not in get_args(kind):
        raise ValueError(f"{name} must be one of {get_args(kind)}; got {value!r}")
    return value


TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            name="mr",
            title="MR",
            input_field="review",
            output_field="sentiment",
            instructions="Say whether the movie review is negative or positive.",
            labels=("negative", "positive"),
        ),
        Task(
            name="sst5",
            title="SST-5",
            input_field="review",
            output_field="sentiment",
            instructions="Say how good the movie is by its review, from terrible to great.",
            labels=("terrible", "bad", "okay", "good", "great"),
        ),
        Task(
            name="trec",
            title="TREC",
            input_field="question",
            output_field="type",
            instructions="Say what kind of answer the question asks for.",
            labels=("Description", "Entity", "Abbreviation", "Human", "Location", "Number"),
        ),
        Task(
            name="agnews",
            title="AG News",
            input_field="article",
            output_field="topic",
            instructions="Say what the news article is about.",
            labels=("World", "Sports", "Business", "Tech"),
        ),
        Task(
            name="subj",
            title="SUBJ",
            input_field="input",
            output_field="type",
            instructions="Say whether the sentence about a movie is subjective (an opinion) or objective (the plot).",
            labels=("subjective", "objective"),
        ),
        Task(
            name="gsm8k",
            title="GSM8K",
            input_field="question",
            output_field="answer",
            instructions="Solve the problem. The answer is a number alone.",
            answer_kind="number",
        ),
        Task(
            name="math500",
            title="MATH500",
            input_field="question",
            output_field="answer",
            instructions="Solve the problem. The answer is the final expression alone, in LaTeX.",
            answer_kind="expression",
        ),
        Task(
            name="deepmath",
            title="DeepMath",
            input_field="question",
            output_field="answer",
            instructions="Solve the problem. The answer is the final expression alone, in LaTeX, or Yes or No.",
            answer_kind="expression",
        ),
    )
}
"""By name, in the order of the paper's tables."""
