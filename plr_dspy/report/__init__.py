"""The report of a compile run: its data, its text and its figure."""
