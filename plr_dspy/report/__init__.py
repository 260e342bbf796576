"""A report's data, and how it is shown: in words, in pictures, and as a page."""
