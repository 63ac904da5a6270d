"""`simctl measure`: the measuring command, the same as `python -m hw` from a checkout."""

from hw.command import command

__all__ = ["command"]
