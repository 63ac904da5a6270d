"""Commands: options to a question, its answer to text."""
