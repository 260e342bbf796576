"""Learn the order of a DSPy program's few-shot demos.

    program = PLReorder(metric=metric).compile(program, trainset=trainset)

Method: "PLR: Plackett-Luce for Reordering In-Context Learning Examples", arXiv:2603.21373.
"""

from plr_dspy._version import __version__
from plr_dspy.completion import completion_lm
from plr_dspy.distributions import PlackettLuce
from plr_dspy.engines import AsyncCompletionEngine, CompletionEngine
from plr_dspy.estimates import Estimate
from plr_dspy.logs import show_log_lines
from plr_dspy.plaintext import PlainTextAdapter
from plr_dspy.records import Trial
from plr_dspy.report import Report
from plr_dspy.search import CrossEntropySearch
from plr_dspy.sensitivity import order_sensitivity
from plr_dspy.sensitivity_findings import OrderSensitivity
from plr_dspy.space import OrderingSpace
from plr_dspy.sweeps import ExhaustiveSearch
from plr_dspy.teleprompter import PLReorder
from plr_dspy.thompson import ThompsonSearch
from plr_dspy.updates import MaximumLikelihood, MixtureEM, RankEMA

__all__ = [
    "AsyncCompletionEngine",
    "CompletionEngine",
    "CrossEntropySearch",
    "Estimate",
    "ExhaustiveSearch",
    "MaximumLikelihood",
    "MixtureEM",
    "OrderSensitivity",
    "OrderingSpace",
    "PLReorder",
    "PlackettLuce",
    "PlainTextAdapter",
    "RankEMA",
    "Report",
    "ThompsonSearch",
    "Trial",
    "__version__",
    "completion_lm",
    "order_sensitivity",
]

show_log_lines()
