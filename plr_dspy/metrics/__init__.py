"""Metrics: by example, and over a whole set of examples."""
