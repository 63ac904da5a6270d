"""Text for terminals of 80 columns: wrapped paragraphs and aligned tables."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

WIDTH = 80


def wrapped(text: str, first: str = "", later: str = "", whole: bool = False) -> list[str]:
    """Lines of at most WIDTH, the first indented by `first`, others by `later`; `whole` keeps words whole, hyphens and all."""
    return textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=later, break_on_hyphens=not whole, break_long_words=not whole)


def fill(text: str, first: str = "", later: str = "", whole: bool = False) -> str:
    """The lines of `wrapped` as one text."""
    return "\n".join(wrapped(text, first, later, whole))


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1, gap: int = 2) -> list[str]:
    """Lines with columns padded to their widest cell: the first `left` columns flush left, the others flush right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    lines = []
    for row in (header, *rows):
        cells = [cell.ljust(width) if i < left else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))]
        lines.append((" " * gap).join(cells).rstrip())
    return lines


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Left-aligned columns, two spaces apart, header first."""
    cells = [[str(value) for value in row] for row in rows]
    return "\n".join(aligned([str(head) for head in header], cells, left=len(header)))
