"""The steps of a compile run: plan, search, race, final comparison and choice."""
