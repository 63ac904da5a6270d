"""Experiment design: cells to measure next for one decision, and their expected value."""
