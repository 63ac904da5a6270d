"""Which cells to measure next, for the sake of one decision, and what that is expected to buy."""
