"""The simctl command line."""

__version__ = "2026.11.0"
