"""What belongs to the process: the terminal, signals, threads, files, and keys that no text may show."""
