"""The probabilities that a language model gives to labels in the place of its answer."""
