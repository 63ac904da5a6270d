"""`python -m hw`: measure from a bare checkout, on a host where nothing of ours is installed."""

from __future__ import annotations

from hw.command import command
from hw.exits import call


def main() -> None:
    """Run the command."""
    call(command, "python -m hw")


if __name__ == "__main__":
    main()
