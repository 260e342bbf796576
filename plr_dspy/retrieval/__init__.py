"""Demos retrieved for each input: pools to search for similar demos, and predictors that show these demos."""
