"""Outputs with few possible values: how probable each label is in a program's calls, and calibration of that."""
