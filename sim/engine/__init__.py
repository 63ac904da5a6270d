"""Engines as schedulers: which requests run in an iteration, with how many tokens, on which KV blocks."""
