"""Grades answers to reasoning tasks, and reads the answers of published solutions."""

from plr_dspy.experiments.grading.answers import lenient, same_expression, same_number
from plr_dspy.experiments.grading.boxes import boxed
from plr_dspy.experiments.grading.equivalence import Checker

__all__ = ["Checker", "boxed", "lenient", "same_expression", "same_number"]
