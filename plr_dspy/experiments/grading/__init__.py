"""Whether the answer to a reasoning task is right."""
