"""Numbers that arXiv:2603.21373 itself reports, as far as they could be found, each with its source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter


@dataclass(frozen=True)
class PublishedResult:
    """One published accuracy.

    Attributes:
        task: Name of the task, such as "agnews".
        dataset: Name that the source gives the data set.
        method: Name of the method; None where the source names none.
        num_demos: Number of demos; None where the source gives none.
        model: Name of the model; None where the source names none.
        accuracy: A fraction, from 0 to 1.
        source: URL of the page that the number was read on.
    """

    task: str
    dataset: str
    method: str | None
    num_demos: int | None
    model: str | None
    accuracy: Annotated[float, Field(ge=0, le=1)]
    source: str


@dataclass(frozen=True)
class Published:
    """What is known of the paper's tables.

    Attributes:
        schema: Version of the file's format.
        paper: The paper's identifier.
        note: What is missing, and how the rest was found.
        results: The numbers, in no order that matters.
    """

    schema: Literal[1]
    paper: str
    note: str
    results: tuple[PublishedResult, ...]

    def best(self, task: str) -> PublishedResult | None:
        """The highest accuracy known of a task, whatever the method and number of demos; None where none is."""
        return max((r for r in self.results if r.task == task), key=lambda r: r.accuracy, default=None)

    def cells(self) -> dict[tuple[str, int, str], float]:
        """Accuracies in %, of which task, number of demos and method are known, by these three."""
        return {
            (r.task, r.num_demos, r.method): 100 * r.accuracy
            for r in self.results
            if r.num_demos is not None and r.method is not None
        }

    def sentence(self, tasks: Sequence[str]) -> str | None:
        """The best published accuracies of some tasks, for the foot of a table; None where none is known."""
        best = [f"{task} {100 * r.accuracy:.1f}" for task in tasks if (r := self.best(task)) is not None]
        if not best:
            return None
        return (
            f"Best of {self.paper}, with other models, of any method and number of demos: {', '.join(best)}."
        )


def load_published(data: bytes | None = None) -> Published:
    """Read published results.

    Args:
        data: JSON of the bundled file's form; None reads the bundled file.

    Raises:
        ValueError: when the data have another form or version, or an accuracy is no fraction.
    """
    if data is None:
        data = (resources.files("plr_dspy.experiments.analysis") / "published.json").read_bytes()
    return TypeAdapter(Published).validate_json(data)
