"""Text for a terminal of 80 columns."""

from __future__ import annotations

import textwrap

WIDTH = 80


def wrapped(text: str, first: str = "", later: str = "", whole: bool = False) -> list[str]:
    """Lines of at most WIDTH, the first indented by `first`, others by `later`; `whole` keeps words whole, hyphens and all."""
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=later, break_on_hyphens=not whole, break_long_words=not whole)


def fill(text: str, first: str = "", later: str = "", whole: bool = False) -> str:
    """The lines of `wrapped` as one text."""
    return "\n".join(wrapped(text, first, later, whole))
