"""Rows of text in aligned columns, for terminals and for Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1, gap: int = 2) -> list[str]:
    """Lines with columns padded to their widest cell: the first `left` columns flush left, the others flush right."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
    lines = []
    for row in (header, *rows):
        cells = [cell.ljust(width) if i < left else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True))]
        lines.append((" " * gap).join(cells).rstrip())
    return lines


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> list[str]:
    """Lines of a Markdown table, numbers flush right."""
    rule = ["---" if i < left else "--:" for i in range(len(header))]
    return ["| " + " | ".join(row) + " |" for row in (header, rule, *rows)]
