"""Language models on servers, and plain-text prompts."""
