"""Kernel latency tables: read, predicted by the formula, and learnt from."""
