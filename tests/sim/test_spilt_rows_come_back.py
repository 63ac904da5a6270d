"""A table that spills to a file gives back the rows it was given, however small its buffer."""

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.results.spill import SpillingTable


@given(rows=st.lists(st.tuples(st.floats(allow_nan=False), st.floats(allow_nan=False)), max_size=50), bytes_=st.integers(1, 200))
def test_rows(rows, bytes_):
    table = SpillingTable(2, buffer_bytes=bytes_)
    for row in rows:
        table.append(row)
    np.testing.assert_array_equal(table.table(), np.array(rows, dtype=float).reshape(-1, 2))


def test_little_stays_in_memory():
    tracemalloc.start()
    table = SpillingTable(10, buffer_bytes=2**16)
    for i in range(100_000):  # 8 MB
        table.append((float(i),) * 10)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20
    assert table.table()[-1, 0] == 99_999
