"""Read and calibrate the label probabilities of outputs with few possible values."""
