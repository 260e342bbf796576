"""Scores orderings on examples, and pays for each call once."""
