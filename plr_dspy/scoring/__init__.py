"""Scores orderings on examples, paying for each call once."""
