"""The published alternatives to `PLReorder`, to be used and compared in its place."""

from plr_dspy.baselines.entropy import GlobalE, LocalE
from plr_dspy.baselines.pdo import PDO
from plr_dspy.baselines.per_input import DEmO, PerInputOrder
from plr_dspy.baselines.static_order import StaticOrder
from plr_dspy.baselines.top_k import TopKOrder

__all__ = ["PDO", "DEmO", "GlobalE", "LocalE", "PerInputOrder", "StaticOrder", "TopKOrder"]
