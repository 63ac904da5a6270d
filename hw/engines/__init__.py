"""Adapters to inference engines: in-process, and any OpenAI-compatible server by URL."""
