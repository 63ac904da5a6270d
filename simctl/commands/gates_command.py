"""`simctl gates`: the comparison of two running servers."""

from hw.gates_of_servers import command

__all__ = ["command"]
