"""Retrieve demos for each input: find similar ones, and choose and order those to show."""
