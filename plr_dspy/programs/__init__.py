"""A DSPy program as something to score: its demos, its copies, its examples and its calls."""
