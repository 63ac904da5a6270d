"""Served runs: read them, learn what serving hides or adds, replay them, and say how wrong the replay is."""
