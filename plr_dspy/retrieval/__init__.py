"""Demos that are found anew for each input: what is like it, which of these are shown, and in what order."""
