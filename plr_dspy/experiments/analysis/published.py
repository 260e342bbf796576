"""Accuracies that arXiv:2603.21373 reports, as far as they could be found, each with its source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

from pydantic import TypeAdapter

_SCHEMA = 1


@dataclass(frozen=True)
class PublishedResult:
    """One published accuracy.

    Attributes:
        task: As in the grid, such as "agnews".
        dataset: As the source calls it.
        method: As in the grid; None where the source names none.
        num_demos: None where the source gives none.
        model: None where the source names none.
        accuracy: A fraction.
        source: URL of the page that the number was read on.
    """

    task: str
    dataset: str
    method: str | None
    num_demos: int | None
    model: str | None
    accuracy: float
    source: str


@dataclass(frozen=True)
class Published:
    """What is known of the paper's tables.

    Attributes:
        schema: Version of the file's format.
        paper: The paper's identifier.
        note: What is missing, and how the rest was found.
        results: In no order that matters.
    """

    schema: int
    paper: str
    note: str
    results: tuple[PublishedResult, ...]

    def cell(self, task: str, num_demos: int, *, method: str) -> PublishedResult | None:
        """One cell of the paper's tables; None where it is not known."""
        key = (task, num_demos, method)
        return next((r for r in self.results if (r.task, r.num_demos, r.method) == key), None)

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


_PUBLISHED = TypeAdapter(Published)


def load_published(data: bytes | None = None) -> Published:
    """Read published results.

    Args:
        data: JSON of the bundled file's form; None reads the bundled file.

    Raises:
        ValueError: when the data have another form, or an accuracy is no fraction.
    """
    if data is None:
        data = (resources.files("plr_dspy.experiments.analysis") / "published.json").read_bytes()
    published = _PUBLISHED.validate_json(data)
    if published.schema != _SCHEMA:
        raise ValueError(
            f"expected published results of schema {_SCHEMA}; got {published.schema}: "
            "read them with the plr_dspy version that wrote them"
        )
    for result in published.results:
        if not 0 <= result.accuracy <= 1:
            raise ValueError(
                f"accuracy must be a fraction in [0, 1]; got {result.accuracy} for {result.task}: "
                "divide percentages by 100"
            )
    return published
