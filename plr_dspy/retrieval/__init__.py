"""Demos retrieved for each input: the search for similar demos, and the predictors that show them."""
