"""Published reports answered claim by claim, from their own tables, the formula and the simulator."""
