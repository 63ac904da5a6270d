"""Closed-form answers: one decode step, its regimes, knees, recall."""
