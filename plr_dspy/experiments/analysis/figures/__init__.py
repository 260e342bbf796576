"""The paper's figures, drawn from records; matplotlib (extra "experiments") is imported when one is drawn."""

from plr_dspy.experiments.analysis.figures.ablation_figure import draw_ablation
from plr_dspy.experiments.analysis.figures.calls_figure import draw_accuracy_by_calls
from plr_dspy.experiments.analysis.figures.ranking_figure import draw_ranking
from plr_dspy.experiments.analysis.rankings import Ranking

__all__ = ["Ranking", "draw_ablation", "draw_accuracy_by_calls", "draw_ranking"]
