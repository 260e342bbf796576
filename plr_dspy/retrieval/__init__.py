"""Retrieve demos for each input: find similar demos, then choose and order the ones to show."""
