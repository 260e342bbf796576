"""Language models behind servers, and prompts in plain text."""
