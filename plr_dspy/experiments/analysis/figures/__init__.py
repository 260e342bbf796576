"""The paper's figures; matplotlib (extra "experiments") is imported when one is drawn."""

from plr_dspy.experiments.analysis.figures.ablation_figure import draw_ablation
from plr_dspy.experiments.analysis.figures.calls_figure import draw_accuracy_by_calls
from plr_dspy.experiments.analysis.figures.ranking_figure import draw_ranking

__all__ = ["draw_ablation", "draw_accuracy_by_calls", "draw_ranking"]
