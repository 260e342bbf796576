"""The experiments of arXiv:2603.21373, for any model and any size (see README.md)."""
