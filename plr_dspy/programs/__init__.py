"""Preparation of DSPy programs for scoring: demos, copies, examples and calls."""
