"""The Plackett-Luce distribution over orderings, or over the first few of n items, and its updates."""
