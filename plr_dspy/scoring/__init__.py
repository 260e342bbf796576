"""Scoring of candidates on examples. A log ensures that each program call is paid for only once."""
