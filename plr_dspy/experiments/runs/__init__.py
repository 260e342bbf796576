"""Makes the runs of an experiment, and keeps their results."""
