"""The optimizers and their common base classes."""
