"""What differs between the compile that a folder was begun with and the one that would go on from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

BUDGET = {"auto", "max_metric_calls"}
"""Arguments that may change as long as the budget does not shrink."""

ENDS = BUDGET | {"stop_at_score", "patience", "stop_at_mode_probability"}
"""Arguments that say when a search ends: where only these changed, it goes on from where it was."""

NAMES = {"metric", "models", "adapter"}
"""Settings that name what scores come from; they do not decide how a search goes on from them."""

DEMOS = "the demos of "
"""How the names of those facts about a program begin that are its predictors' demos."""

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
        """What differs in a group."""
        was, now = self.there.get(group, {}), self.here.get(group, {})
        return [
            name for name in {**was, **now} if was.get(name) != now.get(name) and name not in self.unstable
        ]

    @property
    def groups(self) -> list[str]:
        """The groups that differ."""
        return [group for group in {**self.here, **self.there} if self.names(group)]

    def phrases(self) -> list[str]:
        """What differs in the first group that does, one phrase each; digests (`#...`) say nothing to people."""

        def phrase(name: str, was: Any, now: Any) -> str:
            if any(isinstance(value, str) and value.startswith("#") for value in (was, now)):
                return f"{name} changed"
            return f"{name} was {was!r}, is {now!r}"

        return [
            phrase(name, self.there.get(group, {}).get(name), self.here.get(group, {}).get(name))
            for group in self.groups[:1]
            for name in self.names(group)
        ]

    @property
    def keeps_cells(self) -> bool:
        """Whether paid cells are still of the same examples: they name these by number."""
        return not self.names("examples")

    @property
    def only_grows(self) -> bool:
        """Whether nothing differs but a budget that is no smaller than it was, and what follows from that."""
        was, now = (side.get("settings", {}).get("max_metric_calls", 0) for side in (self.there, self.here))
        larger = now is None or (was is not None and now >= was)
        others = set(self.groups) - {"arguments", "settings"}
        return larger and not others and set(self.names("arguments")) <= BUDGET

    @property
    def same_search(self) -> bool:
        """Whether the search is laid out as it was."""
        return self._same_demos and {*self.names("arguments"), *self.names("settings")} <= NAMES

    @property
    def keeps_search(self) -> bool:
        """Whether the state of the search can be gone on from, if it is laid out otherwise."""
        return self._same_demos and set(self.names("arguments")) <= ENDS | NAMES

    @property
    def _same_demos(self) -> bool:
        """Whether the demos are what they were: the state of a search numbers them."""
        return not any(name.startswith(DEMOS) for name in self.names("program"))
