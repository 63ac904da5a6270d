"""The engine in rows: one row a request, every rule once, as plain Python and as machine code."""
