"""A report's data, and how it is shown: in words, as a figure, and as a page of both."""
