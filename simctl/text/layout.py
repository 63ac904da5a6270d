"""Text for terminals of 80 columns: wrapped paragraphs and aligned tables."""

from __future__ import annotations

import shutil
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


def folded(header: Sequence[str], rows: Sequence[Sequence[str]], repeat: int) -> list[str]:
    """Lines of columns flush right; those that are too many for the terminal follow below, behind the first `repeat` ones again."""
    widths = [2 + max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    parts, most = [list(range(repeat))], max(WIDTH, shutil.get_terminal_size().columns) + 2
    for i in range(repeat, len(header)):
        if len(parts[-1]) > repeat and sum(widths[j] for j in parts[-1]) + widths[i] > most:
            parts.append(list(range(repeat)))
        parts[-1].append(i)
    blocks = [aligned([header[i] for i in part], [[row[i] for i in part] for row in rows], left=0) for part in parts]
    return [line for block in blocks for line in ("", *block)][1:]


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Left-aligned columns, two spaces apart, header first."""
    cells = [[str(value) for value in row] for row in rows]
    return "\n".join(aligned([str(head) for head in header], cells, left=len(header)))
