"""Functions of the product have 50 lines at most, but for twelve; the coefficients of the formula have 40."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
MOST, LONGER = 50, 12


def lengths() -> Iterator[tuple[int, str]]:
    """(lines, file and name) of every function, decorators left out."""
    for folder in ("sim", "calibrate", "hw", "kernels", "simctl"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield (node.end_lineno or 0) - node.lineno + 1, f"{path.relative_to(ROOT)} {node.name}"


def test_few_functions_are_long() -> None:
    longer = sorted(found for found in lengths() if found[0] > MOST)
    assert len(longer) <= LONGER, longer


def test_coefficients_are_one_screen() -> None:
    assert dict(map(reversed, lengths()))["sim/cost/coefficients.py coefficients"] <= 40
