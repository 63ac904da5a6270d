"""KV-cache managers."""
