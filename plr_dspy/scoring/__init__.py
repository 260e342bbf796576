"""Scoring of orderings on examples. Each program call is paid for only once."""
