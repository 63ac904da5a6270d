"""Which leading KV blocks calls share: computed in columns of hashes, of chains of names, and looked up name by name."""

from array import array
from collections import Counter

import numpy as np
from hypothesis import event, given
from hypothesis import strategies as st

from sim.workload.block_chains import Chains, chained, hashed
from sim.workload.content import BlockHashes, BlockNamer

values = st.integers(0, 2) | st.integers(-1, 1).map(lambda each: each * 2**62)


@st.composite
def calls(draw: st.DrawFn) -> list[tuple[BlockHashes | None, int]]:
    """Hashes of blocks of one size or of several, whole and cut, as whole numbers or as text; and prompts that share nothing."""
    size, text, rows = draw(st.integers(1, 9)), draw(st.booleans()), []
    for row in draw(st.lists(st.lists(values, max_size=6), min_size=1, max_size=9)):
        own = draw(st.sampled_from([size, size, size, 3]))
        prompt = max(1, own * len(row) - draw(st.integers(0, own - 1)))
        shares = draw(st.sampled_from([True, True, True, False]))
        rows.append((BlockHashes(list(map(str, row)) if text else array("q", row), own) if shares else None, prompt))
    return rows


def names_of(rows: list[tuple[BlockHashes | None, int]], block: int) -> list[list[int]]:
    namer = BlockNamer(block)
    return [list(namer.names(content, prompt, 1)) for content, prompt in rows]


def agrees(found: Chains, names: list[list[int]]) -> None:
    """Depths are those that counting finds, and numbers stand for names, one for one."""
    holders = Counter(name for chain in names for name in chain)
    depths = [sum(holders[name] > 1 for name in chain) for chain in names]
    assert found.depths.tolist() == depths
    assert found.lengths.tolist() == list(map(len, names))
    pairs = set()
    for chain, begin, depth in zip(names, found.begins.tolist(), depths, strict=True):
        pairs |= set(zip(chain[:depth], found.names[begin : begin + depth].tolist(), strict=True))
    assert len(pairs) == len({name for name, _ in pairs}) == len({number for _, number in pairs}) == found.distinct
    assert {number for _, number in pairs} == set(range(found.distinct))
    assert found.distinct <= len(holders) <= found.blocks
    event("shared" if pairs else "nothing shared")


@given(calls(), st.integers(1, 7))
def test_hashes_in_columns(rows: list[tuple[BlockHashes | None, int]], block: int) -> None:
    found = hashed([content for content, _ in rows], np.array([prompt for _, prompt in rows]), block)
    agrees(found, names_of(rows, block))


@given(calls(), st.integers(1, 7))
def test_chains_of_names(rows: list[tuple[BlockHashes | None, int]], block: int) -> None:
    names = names_of(rows, block)
    agrees(chained(names), names)
