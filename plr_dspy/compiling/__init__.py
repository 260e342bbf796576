"""One compile: its budget, its search, the race of the best orderings, and the final choice."""
