"""Modules that check, copy and call DSPy programs, and prepare their demos and examples."""
