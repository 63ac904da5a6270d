"""Measures: real kernels and real engines on real hardware, into labelled files."""
