"""sim.machine_code: what it makes of functions gives what Python gives; what it cannot translate it names."""

import ctypes
import math
from typing import Any, NamedTuple

import numpy as np
import pytest

from sim.cluster import compiled
from sim.machine_code import INT, Program, Record, Untranslatable, assembly, columns_of

pytestmark = pytest.mark.skipif(not compiled.available(), reason="llvmlite is not installed")
ROW = np.dtype([("a", np.int64), ("small", np.int8), ("b", np.float64), ("bits", np.uint8)])


class Pair(NamedTuple):
    one: Any
    other: Any


class Inner(NamedTuple):
    numbers: Any
    rows: Any


class Outer(NamedTuple):
    floats: Any
    inner: Any


def ran(function, columns, *records):
    """What machine code of a function returns for these columns and records."""
    import llvmlite.binding as llvm

    machine = compiled._target()
    kinds = columns_of(columns), *(Record(each.dtype) for each in records)
    module = llvm.parse_assembly(assembly(function, kinds, {}, {function, halves}))
    module.verify()
    jit = llvm.create_lljit_compiler(machine)
    code = llvm.JITLibraryBuilder().add_ir(str(module)).add_current_process().export_symbol("from_block").link(jit, "test")
    addresses = np.array([each.ctypes.data for each in compiled._flat(columns)])
    block = np.array([addresses.ctypes.data, *(each.ctypes.data for each in records)])
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(code["from_block"])(block.ctypes.data)


def whole_numbers(w, _given):
    numbers, place = w.inner.numbers, 8
    for a in range(-7, 8):
        for b in range(3, -4, -1):
            if b and not (a == 5 and b > 0):
                numbers[place] = a // b * 100 + a % b + (a & 3) * 7 + (a ^ b) + (a << 2) + (a >> 1) - (a | b)
                place += 1
            elif a == 6:
                break
            else:
                continue
    return place


def kinds_that_grow(w, given):
    total, count = 0, 0
    while count < 5 and not total > 1e6:
        total = total + w.floats[count] if count % 2 else total - count
        count += 1
    best = max(total, 3, given.x)
    w.floats[0] = min(best, 7) ** 0.5 + math.ceil(best / 3) + round(2.5) + round(best) + int(-best)
    return int(0 < count <= 5 < 6) + (count or 9) + (count and 1)


def halves(total: float, by: float = 2.0):
    return Pair(total / by, 1 if total > by else 0)


def records_and_tuples(w, given):
    row, one = w.inner.rows[1], w.inner.rows[0]
    row.small, row.a, row.bits = -3, 7, 200
    row.a += row.small
    row.b = one.b = given.x
    pair = halves(row.b) if row.a else Pair(1.0, 2)
    first, second = pair.one, pair.other
    w.floats[1], w.floats[2] = first, -second
    later = one if second else row
    later.a = row.bits - (not second)
    w.inner.numbers[0], w.inner.numbers[1] = w.inner.numbers[1], w.inner.numbers[0]
    return later.a


@pytest.mark.parametrize("function", [whole_numbers, kinds_that_grow, records_and_tuples])
@pytest.mark.parametrize("x", [-2.5, 0.0, 1e3])
def test_it_equals_python(function, x):
    found = []
    for run in (lambda f, w, given: ran(f, w, np.array(given)), lambda f, w, given: f(w, given)):
        rows = np.zeros(3, dtype=ROW).view(np.recarray)
        w = Outer(np.linspace(-1.0, 4.0, 6), Inner(np.arange(120), rows))
        given = np.array((x,), dtype=np.dtype((np.record, [("x", np.float64)])))[()]
        found.append((run(function, w, given), w.floats.tolist(), w.inner.numbers.tolist(), rows.tolist()))
    assert found[0] == found[1]


def with_a_list(n):
    return [n]


def of_two_kinds(n):
    n = n if n else Pair(n, n)
    return 1


def calls_another(n):
    return with_a_list(n)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (with_a_list, r"with_a_list, line \d+: not translated: \[n\]"),
        (of_two_kinds, "is i64 and Items"),
        (calls_another, "with_a_list is not among the functions"),
    ],
)
def test_what_it_cannot_translate_is_named(function, said):
    with pytest.raises(Untranslatable, match=said):
        Program({}, {function}).function(function, (INT,))
