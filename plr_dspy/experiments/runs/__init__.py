"""The runs of an experiment: what they are, how they are made, and what they gave."""
