"""The report of a compile: its data, its text and its figure."""
