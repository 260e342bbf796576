"""Metrics: by example, and over a whole set of examples."""

OVER_SETS = {"f1": "F1", "mcc": "MatthewsCorrelation", "balanced-accuracy": "BalancedAccuracy"}
"""Metrics over a set, by the names that the command line gives them; F1 may have a label after a colon."""
