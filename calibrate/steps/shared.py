"""What many cells share of a loop over them, worked out once and looked up.

Runs of one model measure the same iterations: among the 1,759 cells of the H100 there are 28 different loads of experts and 194 of linear
layers. Logarithms and exponentials are most of what a cell takes, and one that needs some terms of the bill alone is the same wherever
those are. Nothing is rounded otherwise for it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_NAME = re.compile(r"[a-z_]\w*")
_DEAR = re.compile(r"\b(?:exp|expm1|log|log1p|sqrt)\(")
# What the printed loops read beside cells: numbers worked out before, where they begin for each cell, and the cells that they are of.
ARGUMENTS = "shared, place, first, begin"


@dataclass(frozen=True)
class Group:
    """Dear values that need the same terms of the bill: which columns of it, and the names they are given."""

    columns: tuple[int, ...]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Split:
    """Statements on one cell, split: those on no cell, the loops that work out what is shared, and what is left to each cell."""

    groups: tuple[Group, ...]
    once: list[str]
    loops: list[str]
    cell: list[str]


@dataclass(frozen=True)
class Layout:
    """Where what cells of one bill share is kept: `size` numbers, of which those of group g begin at place[g, cell]; first [begin[g] to
    begin[g + 1]] are cells that differ in what the group needs.
    """

    bill: Array
    size: int
    place: NDArray[np.int32]
    first: NDArray[np.int32]
    begin: NDArray[np.int32]


def split(lines: Sequence[str], fields: Sequence[str], own: Collection[str]) -> Split:
    """Split statements `name = expression` on one cell, whose bill has these fields, and which has names of its `own` beside."""
    needs: dict[str, frozenset[str]] = {name: frozenset([name]) for name in (*fields, *own)}
    written = dict(line.split(" = ", 1) for line in lines)
    for name, text in written.items():
        needs[name] = frozenset[str]().union(*(needs.get(used, frozenset()) for used in _NAME.findall(text)))
    dear: dict[frozenset[str], list[str]] = {}
    for name, text in written.items():
        if _DEAR.search(text) and needs[name] and not needs[name] & set(own):
            dear.setdefault(needs[name], []).append(name)
    sets = sorted(dear, key=len)  # what one needs of another is kept before it
    kept = {name: f"shared[place[{g}, i] + {k}]" for g, which in enumerate(sets) for k, name in enumerate(dear[which])}
    groups = tuple(Group(tuple(j for j, field in enumerate(fields) if field in which), tuple(dear[which])) for which in sets)
    loops: list[str] = []
    for g, group in enumerate(groups):
        steps = list(_towards(group.names, written, needs, kept))
        read = [f"{fields[j]} = bill[i, {j}]" for j in group.columns]
        write = [f"{kept[name]} = {name}" for name in group.names]
        body = ["i = first[j]", *read, *steps, *write]
        loops += [f"for j in range(begin[{g}], begin[{g + 1}]):", *(f"    {line}" for line in body)]
    cell = [f"{name} = {kept.get(name, text)}" for name, text in written.items() if needs[name]]
    return Split(groups, [f"{name} = {text}" for name, text in written.items() if not needs[name]], loops, cell)


def lay_out(groups: Iterable[Group], bill: Array) -> Layout:
    """Where what cells of this bill [n, field] share is kept."""
    size, begin, place, first = 0, [0], [], []
    for group in groups:
        _, cells, which = np.unique(bill[:, list(group.columns)], axis=0, return_index=True, return_inverse=True)
        place.append(size + len(group.names) * which.reshape(-1))
        first.append(cells)
        begin.append(begin[-1] + cells.size)
        size += len(group.names) * cells.size
    return Layout(
        bill,
        size,
        np.array(place, dtype=np.int32).reshape(-1, len(bill)),
        np.concatenate([np.empty(0, np.int32), *first]).astype(np.int32),
        np.array(begin, dtype=np.int32),
    )


def _towards(names: Iterable[str], written: dict[str, str], needs: dict[str, frozenset[str]], kept: dict[str, str]) -> Iterator[str]:
    """The statements that lead to these names, in order; other groups' are looked up."""
    own, wanted = set(names), set[str]()

    def want(name: str) -> None:
        if name in written and needs[name] and name not in wanted:
            wanted.add(name)
            if name in own or name not in kept:
                for used in _NAME.findall(written[name]):
                    want(used)

    for name in own:
        want(name)
    for name, text in written.items():
        if name in wanted:
            yield f"{name} = {text if name in own else kept.get(name, text)}"
