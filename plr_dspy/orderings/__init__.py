"""Orderings of demos, the Plackett-Luce distribution over them, and its updates."""
