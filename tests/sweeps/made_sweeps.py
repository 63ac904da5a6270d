"""Small sweeps: a scenario that is answered in milliseconds, a store of made-up figures, and the bytes of a store."""

from __future__ import annotations

from pathlib import Path

from sim.sweeps.design import Design
from sim.sweeps.store import Variable, open_store

SCENARIO = """\
question: How fast is a decode step?
command: what-if
options: {ctx: 8K, gpu: A10}
sweep: {gpu: [A10, H100], tp: [1, 2]}
report: [knee.batch]
"""
DESIGN = Design({"gpu": ["A10", "H100"], "rate": [0.5, 1.0, 2.0]})
FIGURES = [Variable("ttft_ms", "ms", "time to first token"), Variable("ttft_ms_rates_90", "ms", "its interval", width=2)]
KEYS = [f"key {place}" for place in range(6)]
ABOUT = {"question": "Which?", "version": "1"}


def scenario(folder: Path, text: str = SCENARIO) -> str:
    """A scenario file of this text."""
    path = folder / "study.yaml"
    path.write_text(text)
    return str(path)


def opened(path: Path, keys: list[str] | None = None, about: dict[str, str] | None = None):
    """The store of six cells."""
    return open_store(path, DESIGN, FIGURES, keys or KEYS, about or ABOUT)


def figures(place: int) -> dict[str, float | list[float]]:
    """Of one cell."""
    return {"ttft_ms": 10.0 + place, "ttft_ms_rates_90": [9.0 + place, 12.0 + place]}


def tree(path: Path) -> dict[str, bytes]:
    """The bytes of every file."""
    return {str(each.relative_to(path)): each.read_bytes() for each in sorted(path.rglob("*")) if each.is_file()}
