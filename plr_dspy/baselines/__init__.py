"""The published alternatives to `PLReorder`, to be used and compared in its place."""

from typing import TYPE_CHECKING

from plr_dspy._exports import lazy_exports

if TYPE_CHECKING:
    from plr_dspy.baselines.label_methods import PDO, GlobalE, LocalE
    from plr_dspy.baselines.per_input import DEmO, PerInputOrder
    from plr_dspy.baselines.random_search import StaticOrder, TopKOrder
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            ".label_methods": ["PDO", "GlobalE", "LocalE"],
            ".per_input": ["DEmO", "PerInputOrder"],
            ".random_search": ["StaticOrder", "TopKOrder"],
        },
    )

__all__ = ["PDO", "DEmO", "GlobalE", "LocalE", "PerInputOrder", "StaticOrder", "TopKOrder"]
