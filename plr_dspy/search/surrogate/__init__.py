"""The model of scores that a search learns from."""
