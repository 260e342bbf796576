"""Retrieve demos for each input: find similar ones, then choose and order those to show."""
