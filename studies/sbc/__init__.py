"""Simulation-based calibration: parameters drawn from a model's prior have uniform ranks among the posterior draws of their own data."""
