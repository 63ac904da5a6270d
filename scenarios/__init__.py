"""Studies (YAML, one question each) and the packaged data they need."""
