"""Choose the few-shot demos of a DSPy program, and their order, within a budget of program calls.

    program = PLFewShot(metric=metric).compile(program, trainset=trainset)  # which demos, how many, in what order
    program = PLReorder(metric=metric).compile(program, trainset=trainset)  # the order of those that it has

Method: "PLR: Plackett-Luce for Reordering In-Context Learning Examples", arXiv:2603.21373.
"""

from typing import TYPE_CHECKING

from plr_dspy._exports import lazy_exports
from plr_dspy._version import __version__
from plr_dspy.optimizer.log_lines import show_log_lines

if TYPE_CHECKING:
    from plr_dspy.evaluation import Evaluation, ProgramScore, evaluate_programs
    from plr_dspy.labels.batch_calibration import BatchCalibration
    from plr_dspy.labels.calibrated_program import CalibratedProgram, Calibration
    from plr_dspy.lm.engines import AsyncCompletionEngine, CompletionEngine, completion_lm
    from plr_dspy.lm.plain_text_adapter import PlainTextAdapter
    from plr_dspy.loading import load_program
    from plr_dspy.metrics.over_set import (
        F1,
        AverageScoreBy,
        BalancedAccuracy,
        DatasetMetric,
        MatthewsCorrelation,
        RecallAtPrecision,
    )
    from plr_dspy.optimizer.cost_estimate import Estimate
    from plr_dspy.optimizer.fewshot import PLFewShot
    from plr_dspy.optimizer.plreorder import PLReorder
    from plr_dspy.optimizer.sensitivity import order_sensitivity
    from plr_dspy.plackett_luce.distribution import PlackettLuce
    from plr_dspy.plackett_luce.updates import MaximumLikelihood, MixtureEM, RankEMA
    from plr_dspy.report.data import Report
    from plr_dspy.report.order_sensitivity import OrderSensitivity
    from plr_dspy.search.search import CrossEntropySearch
    from plr_dspy.search.space import OrderingSpace
    from plr_dspy.search.thompson import ThompsonSearch
else:  # torch, scipy and DSPy take seconds to import
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            ".evaluation": ["Evaluation", "ProgramScore", "evaluate_programs"],
            ".labels.batch_calibration": ["BatchCalibration"],
            ".labels.calibrated_program": ["CalibratedProgram", "Calibration"],
            ".lm.engines": ["AsyncCompletionEngine", "CompletionEngine", "completion_lm"],
            ".lm.plain_text_adapter": ["PlainTextAdapter"],
            ".loading": ["load_program"],
            ".metrics.over_set": [
                "F1",
                "AverageScoreBy",
                "BalancedAccuracy",
                "DatasetMetric",
                "MatthewsCorrelation",
                "RecallAtPrecision",
            ],
            ".optimizer.cost_estimate": ["Estimate"],
            ".optimizer.fewshot": ["PLFewShot"],
            ".optimizer.plreorder": ["PLReorder"],
            ".optimizer.sensitivity": ["order_sensitivity"],
            ".plackett_luce.distribution": ["PlackettLuce"],
            ".plackett_luce.updates": ["MaximumLikelihood", "MixtureEM", "RankEMA"],
            ".report.order_sensitivity": ["OrderSensitivity"],
            ".report.data": ["Report"],
            ".search.search": ["CrossEntropySearch"],
            ".search.space": ["OrderingSpace"],
            ".search.thompson": ["ThompsonSearch"],
        },
    )

__all__ = [
    "F1",
    "AsyncCompletionEngine",
    "AverageScoreBy",
    "BalancedAccuracy",
    "BatchCalibration",
    "CalibratedProgram",
    "Calibration",
    "CompletionEngine",
    "CrossEntropySearch",
    "DatasetMetric",
    "Estimate",
    "Evaluation",
    "MatthewsCorrelation",
    "MaximumLikelihood",
    "MixtureEM",
    "OrderSensitivity",
    "OrderingSpace",
    "PLFewShot",
    "PLReorder",
    "PlackettLuce",
    "PlainTextAdapter",
    "ProgramScore",
    "RankEMA",
    "RecallAtPrecision",
    "Report",
    "ThompsonSearch",
    "__version__",
    "completion_lm",
    "evaluate_programs",
    "load_program",
    "order_sensitivity",
]

show_log_lines()
