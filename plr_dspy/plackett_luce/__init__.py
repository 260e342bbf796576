"""The Plackett-Luce distribution over full or partial orderings, and its update rules."""
