"""Random damage: of bytes, and of one value or more in a tree of plain data."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

DEEP: list[Any] = []
for _ in range(300):
    DEEP = [DEEP]
NASTY = (
    None, True, False, 0, -1, 1, 2, 3.5, -0.0, 2**31, 2**32, 2**53 + 1, 2**63, -(2**63) - 1, 2**64, 10**30, 10**400, 1e300, -1e300,
    5e-324, float("nan"), float("inf"), float("-inf"), "", " ", "x", "nan", "inf", "1e999", "0x10", "1_0",
    "\0", "\n", "\r", "é", "\ud800", "\udcff",
    "a" * 5000, "9" * 5000, [], {}, [[]], [{}], [None], {"": None}, {"x": []}, [1] * 1000, DEEP,
)  # fmt: skip
BITS = (
    b"\0", b"\r", b"\n", b"\r\n", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b",", b'"', b"'", b"[", b"]", b"{", b"}", b":", b"\\",
    b"\\ud800",
    b"*a", b"&a ", b"<<: ", b"!!int ''", b"!!python/object:os.system", b"2024-01-01", b"1:1:1", b"NaN", b"Infinity", b"-Infinity",
    b"null", b"true", b"1e999", b"-1", b"0", b"9" * 30, b"9" * 5000, b"[" * 2000, b"- " * 500, b"{a: " * 300, b"\x1b[2J", b"~",
    b"|\n", b"? ",
)  # fmt: skip


def damaged(rng: random.Random, data: bytes) -> bytes:
    """The bytes after one to four edits."""
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        to = min(len(data), at + int(rng.expovariate(1 / 20)))
        edit = rng.randrange(6)
        if edit == 0:
            data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        elif edit == 1:
            data = data[:at] + rng.choice(BITS) + data[at:]
        elif edit == 2:
            data = data[:at] + rng.choice(BITS) + data[to:]
        elif edit == 3:
            data = data[:at] + data[to:]
        elif edit == 4:
            data = data[:to] + data[at:to] * rng.randint(1, 20) + data[to:]
        else:
            data = data[:at]
    return data


def altered(rng: random.Random, tree: Any) -> Any:
    """A copy of plain data with one to three values replaced, left out, wrapped, or given to another key."""
    tree = copy.deepcopy(tree)
    for _ in range(rng.randint(1, 3)):
        holder, place = _somewhere(rng, [tree], 0)
        edit = rng.randrange(8)
        if edit == 0 and isinstance(holder, dict):
            del holder[place]
            break
        if edit == 1:
            holder[place] = [holder[place]]
        elif edit == 2 and isinstance(holder, dict):
            holder[rng.choice(("x", "", "\ud800", "é"))] = holder.pop(place)
            break
        elif edit == 3 and isinstance(holder[place], int | float) and abs(holder[place]) < 1e300:
            holder[place] = -holder[place] if rng.random() < 0.3 else holder[place] * 10.0 ** rng.randint(-12, 12)
        else:
            holder[place] = copy.deepcopy(rng.choice(NASTY))
        if holder == [] or not isinstance(tree, dict | list):
            break
    return tree


def nudged(rng: random.Random, tree: Any) -> Any:
    """A copy of plain data with one number or two far from its own: what is well formed and absurd."""
    tree = copy.deepcopy(tree)
    numbers = [(holder, place) for holder, place in _leaves([tree]) if type(holder[place]) in (int, float)]
    for holder, place in rng.sample(numbers, min(len(numbers), rng.randint(1, 2))):
        value = holder[place]
        holder[place] = rng.choice((0, 1, value * 10 ** rng.randint(1, 9), value * 10.0 ** -rng.randint(1, 9), value + 1, 1e-12, 1024))
    return tree


def _leaves(holder: Any) -> Iterator[tuple[Any, Any]]:
    for place in holder if isinstance(holder, dict) else range(len(holder)):
        if isinstance(holder[place], dict | list):
            yield from _leaves(holder[place])
        else:
            yield holder, place


def as_json(tree: Any) -> bytes:
    """JSON text as careless programs write it: NaN, and halves of surrogate pairs, escaped or not."""
    return json.dumps(tree).encode()


def _somewhere(rng: random.Random, holder: Any, place: Any) -> tuple[Any, Any]:
    """(container, key or index) of a random value in the tree at holder[place]; deeper ones as likely as shallow ones."""
    while (value := holder[place]) and isinstance(value, dict | list) and rng.random() < 0.9:
        holder, place = value, rng.choice(list(value) if isinstance(value, dict) else range(len(value)))
    if isinstance(holder, list) and len(holder) == 1 and place == 0 and holder[0] and isinstance(holder[0], dict):
        return holder[0], rng.choice(list(holder[0]))
    return holder, place
