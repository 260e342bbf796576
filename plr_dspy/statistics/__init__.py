"""Calibration of label probabilities, and statistical comparison of scores on the same examples."""
