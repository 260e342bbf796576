"""The eight tasks of the paper, and where their examples come from."""
