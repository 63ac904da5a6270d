"""Files, options and HTTP requests damaged at random are answered, or refused in one line: no traceback, hang or gigabyte, nothing left."""

import os
import subprocess
import sys

import pytest

from tests.hostile.all_kinds import KINDS
from tests.hostile.many import LONGEST_S, MANY, MOST, MOST_BYTES, alone, many

FEW = 30
FEWER = {"posteriors": 12, "runs": 8}  # of a quarter to half a second each, a report of two


@pytest.mark.parametrize("kind", KINDS)
def test_a_few(kind):
    count = FEWER.get(kind, FEW)
    found = many(kind, count, seed=0)
    assert found["faults"] == []
    assert found["answered"] + found["refused"] == count
    assert found["refused"] >= count // 3


def test_the_many_are_fifty_thousand():
    assert sum(MANY.get(kind, MOST) for kind in KINDS) >= 50_000


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_many_in_bounded_memory(kind):
    count = MANY.get(kind, MOST)
    found = alone(kind, count, int(os.environ.get("HOSTILE_SEED", "1")))
    assert found["faults"] == []
    assert found["answered"] + found["refused"] == count
    assert found["slowest_s"] < LONGEST_S
    assert found["peak_bytes"] < MOST_BYTES


def test_the_limit_of_memory_holds():
    """What bounds the many would stop one that asks for more."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_DATA, ({MOST_BYTES}, {MOST_BYTES})); bytearray({2 * MOST_BYTES})"
    done = subprocess.run([sys.executable, "-c", limit], capture_output=True, text=True, check=False)
    assert "MemoryError" in done.stderr
