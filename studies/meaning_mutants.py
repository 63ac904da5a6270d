"""Mutants of meaning: like quantities exchanged, a bound moved by one, a change of state dropped."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

BOUNDS: dict[type, type] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
ROUNDINGS = {"ceil": "floor", "floor": "ceil", "min": "max", "max": "min"}
CHANGES = ("append", "appendleft", "add", "discard", "remove", "pop", "popleft", "update", "clear", "extend")


class Mutant(NamedTuple):
    """Lines of a file (the first is 1) and the text that takes their place."""

    file: Path
    first: int
    last: int
    text: str


def of_meaning(file: Path) -> Iterator[Mutant]:
    """Every mutant of a file. Of an `if` or `while` only the condition is changed."""
    source = file.read_text()
    tree = ast.parse(source)
    lines, alike = source.splitlines(), _alike(tree)
    for statement in ast.walk(tree):
        if isinstance(statement, ast.Assign | ast.AugAssign | ast.Return | ast.Expr):
            first, last = statement.lineno, statement.end_lineno or statement.lineno
            if _changes_state(statement):
                yield Mutant(file, first, last, "pass")
            if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)):
                yield from (Mutant(file, first, last, text) for text in _changed(statement, alike))
        elif isinstance(statement, ast.If | ast.While):
            word = lines[statement.lineno - 1].split()[0]
            last = statement.test.end_lineno or statement.lineno
            if lines[last - 1].rstrip().endswith(":"):  # and not a line below, of a bracket
                yield from (Mutant(file, statement.lineno, last, f"{word} {text}:") for text in _changed(statement.test, alike))


def _alike(tree: ast.AST) -> dict[str, str]:
    """Attributes of a file by text, each with the next one of the same owner and unit (what follows the last underscore)."""
    groups: dict[tuple[str, str], set[str]] = defaultdict(set)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not node.attr.startswith("__"):
            groups[ast.unparse(node.value), node.attr.rpartition("_")[2] if "_" in node.attr else ""].add(node.attr)
    found: dict[str, str] = {}
    for (owner, unit), names in groups.items():
        ordered = sorted(names)
        if unit and len(ordered) > 1:
            found |= {f"{owner}.{name}": after for name, after in zip(ordered, [*ordered[1:], ordered[0]], strict=True)}
    return found


def _changes_state(statement: ast.stmt) -> bool:
    """Whether a statement only changes what outlives it: without it the source still runs."""
    if isinstance(statement, ast.AugAssign):
        return not isinstance(statement.target, ast.Name)
    if isinstance(statement, ast.Assign):
        return all(isinstance(target, ast.Attribute | ast.Subscript) for target in statement.targets)
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and isinstance(statement.value.func, ast.Attribute)
        and statement.value.func.attr in CHANGES
    )


def _changed(node: ast.AST, alike: dict[str, str]) -> Iterator[str]:
    """Texts of a statement or expression with one place changed."""
    for number, _ in enumerate(_places(node, alike)):
        copy = ast.parse(ast.unparse(node)).body[0]
        _change(list(_places(copy, alike))[number], alike)
        yield ast.unparse(copy)


def _places(node: ast.AST, alike: dict[str, str]) -> Iterator[ast.AST]:
    for each in ast.walk(node):
        swapped = isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load) and ast.unparse(each) in alike
        bound = isinstance(each, ast.Compare) and type(each.ops[0]) in BOUNDS
        if swapped or bound or (isinstance(each, ast.Call) and _rounding(each) is not None):
            yield each


def _rounding(call: ast.Call) -> str | None:
    """The opposite of what a call rounds or chooses by."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return ROUNDINGS.get(name)


def _change(node: ast.AST, alike: dict[str, str]) -> None:
    if isinstance(node, ast.Attribute):
        node.attr = alike[ast.unparse(node)]
    elif isinstance(node, ast.Compare):
        node.ops[0] = BOUNDS[type(node.ops[0])]()
    elif isinstance(node, ast.Call) and (other := _rounding(node)):
        if isinstance(node.func, ast.Attribute):
            node.func.attr = other
        elif isinstance(node.func, ast.Name):
            node.func.id = other
