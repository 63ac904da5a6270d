"""Text of commands on a terminal."""
