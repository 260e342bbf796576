"""Label probabilities of outputs with few possible values, and their calibration."""
