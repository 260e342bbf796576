"""Searches over orderings, with an ask-and-tell interface."""
