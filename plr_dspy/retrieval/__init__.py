"""Retrieval of demos for each input: searchable pools of demos, and predictors that show retrieved demos."""
