"""Intervals and tests of scores that share their examples."""
