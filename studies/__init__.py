"""Programs of this project, run by make: what is packaged, and what it is worth."""
