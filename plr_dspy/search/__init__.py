"""Searches over orderings, which are asked for orderings and told their scores."""
