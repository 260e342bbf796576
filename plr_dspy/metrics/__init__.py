"""Metrics that score single examples, and metrics over a set of examples."""
