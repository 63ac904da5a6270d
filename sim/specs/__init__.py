"""Model shapes and GPU datasheets."""
