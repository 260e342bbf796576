"""Whether a compile may go on from a folder: compares the identity that began it with that of the compile."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

BUDGET_ARGUMENTS = {"auto", "max_metric_calls"}
"""Arguments that may change as long as the budget does not shrink."""

ENDING_ARGUMENTS = BUDGET_ARGUMENTS | {"stop_at_score", "patience", "stop_at_mode_probability"}
"""Arguments that say when a search ends: where only these changed, it goes on from where it was."""

NAMES_OF_SCORERS = {"metric", "models", "adapter"}
"""Settings that name what scores come from; they do not decide how a search goes on from them."""

DEMOS_OF = "the demos of "
"""How the names of those facts about a program begin that are its predictors' demos."""

WHOLE_METRIC = "the metric's code or state"
"""Name of the fact about a program that differs wherever one about a part of the metric does."""

Identity = Mapping[str, Mapping[str, Any]]
"""Facts by name, in groups of which each decides much of the next."""


@dataclass(frozen=True)
class Changes:
    """The differences between two identities.

    Attributes:
        there, here: Of the folder, and of this compile.
        unstable: Names of facts that changed while a compile ran, and so say nothing.
    """

    there: Identity
    here: Identity
    unstable: Collection[str] = ()

    def names(self, group: str) -> list[str]:
        """List the names of the facts of a group that differ."""
        was, now = self.there.get(group, {}), self.here.get(group, {})
        return [
            name for name in {**was, **now} if was.get(name) != now.get(name) and name not in self.unstable
        ]

    @property
    def groups(self) -> list[str]:
        """List the groups that differ."""
        return [group for group in {**self.here, **self.there} if self.names(group)]

    def phrases(self) -> list[str]:
        """Say what differs in the first group that does, one phrase each; digests (`#...`) say nothing to people."""

        def phrase(name: str, was: Any, now: Any) -> str:
            if any(isinstance(value, str) and value.startswith("#") for value in (was, now)):
                return f"{name} changed"
            return f"{name} was {was!r}, is {now!r}"

        return [
            phrase(name, self.there.get(group, {}).get(name), self.here.get(group, {}).get(name))
            for group in self.groups[:1]
            for name in _without_repeats(self.names(group))
        ]

    @property
    def keeps_cells(self) -> bool:
        """Tell whether paid cells are still of the same examples: they name these by number."""
        return not self.names("examples")

    @property
    def only_grows(self) -> bool:
        """Tell whether nothing differs but a budget that is no smaller than it was, and what follows from that."""
        was, now = (side.get("settings", {}).get("max_metric_calls", 0) for side in (self.there, self.here))
        larger = now is None or (was is not None and now >= was)
        others = set(self.groups) - {"arguments", "settings"}
        return larger and not others and set(self.names("arguments")) <= BUDGET_ARGUMENTS

    @property
    def same_search(self) -> bool:
        """Tell whether the search is laid out as it was."""
        return self._same_demos and {*self.names("arguments"), *self.names("settings")} <= NAMES_OF_SCORERS

    @property
    def keeps_search(self) -> bool:
        """Tell whether the state of the search can be gone on from, if it is laid out otherwise."""
        return self._same_demos and set(self.names("arguments")) <= ENDING_ARGUMENTS | NAMES_OF_SCORERS

    @property
    def _same_demos(self) -> bool:
        """Tell whether the demos are what they were: the state of a search numbers them."""
        return not any(name.startswith(DEMOS_OF) for name in self.names("program"))


def _without_repeats(names: list[str]) -> list[str]:
    """Leave out the metric as a whole where one of its parts is named."""
    parts = [name for name in names if "the metric" in name and name != WHOLE_METRIC]
    return [name for name in names if not (parts and name == WHOLE_METRIC)]
