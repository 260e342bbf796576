"""The published alternatives to `PLReorder`, to be used and compared in its place."""

from typing import TYPE_CHECKING

from plr_dspy._exports import lazy_exports

if TYPE_CHECKING:
    from plr_dspy.baselines.entropy import GlobalE, LocalE
    from plr_dspy.baselines.pdo import PDO
    from plr_dspy.baselines.per_input import DEmO, PerInputOrder
    from plr_dspy.baselines.static_order import StaticOrder
    from plr_dspy.baselines.top_k import TopKOrder
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            ".entropy": ["GlobalE", "LocalE"],
            ".pdo": ["PDO"],
            ".per_input": ["DEmO", "PerInputOrder"],
            ".static_order": ["StaticOrder"],
            ".top_k": ["TopKOrder"],
        },
    )

__all__ = ["PDO", "DEmO", "GlobalE", "LocalE", "PerInputOrder", "StaticOrder", "TopKOrder"]
