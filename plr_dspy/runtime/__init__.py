"""Helpers of the process: log lines, the progress bar, signals, threads, files."""
