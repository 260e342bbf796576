"""Label probabilities for outputs with few possible values, and the calibration of programs."""
