"""The model of scores: what scores on some examples, and log-probabilities of labels, tell of orderings on new ones."""
