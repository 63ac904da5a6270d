"""All that prices an engine iteration."""
