"""`simctl gates`: the comparison of two running servers."""

from hw.gates_command import command

__all__ = ["command"]
