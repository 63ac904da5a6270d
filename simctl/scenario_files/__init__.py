"""Scenario files: read, checked, and answered over their sweeps."""
