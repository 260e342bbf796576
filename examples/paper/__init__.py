"""Repeat the experiments of arXiv:2603.21373 on any model, at any size (see README.md)."""
