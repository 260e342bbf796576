"""Calibrated prediction: a finite output that is decided by calibrated probabilities of its labels."""
