"""Objects of a notebook: one line as `repr`, a small table as HTML."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

MOST = 200  # characters of a line
Figures = Sequence[tuple[str, str]]


class Shown:
    """A base of what a notebook cell may end in. `shown` says its title and its figures, the weightiest first."""

    __slots__ = ()

    def shown(self) -> tuple[str, Figures]:
        """(title, (name, value) of each figure)."""
        raise NotImplementedError

    def __repr__(self) -> str:
        title, figures = self.shown()
        line = ", ".join([title, *(f"{name} {value}" for name, value in figures)])
        kind = type(self).__name__
        return f"<{kind} {textwrap.shorten(line, MOST - len(kind) - 3, placeholder=' ...')}>"

    def _repr_html_(self) -> str:
        from html import escape

        title, figures = self.shown()
        rows = "".join(f"<tr><th style='text-align:left'>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in figures)
        return f"<table><caption>{escape(type(self).__name__)}: {escape(title)}</caption>{rows}</table>"
