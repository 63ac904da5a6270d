"""KV blocks get equal names exactly when everything up to their end is equal, from token ids or hashes of any block size."""

from array import array

from hypothesis import given
from hypothesis import strategies as st

from sim.workload.content import BlockHashes, BlockNamer, Grown, SystemPrompt, TokenIds

prompts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=40), min_size=1, max_size=8)


@given(prompts, st.integers(1, 7))
def test_token_ids(rows, size):
    namer = BlockNamer(size)
    named = [namer.names(TokenIds(array("i", row)), len(row), 1) for row in rows]
    for row, names in zip(rows, named, strict=True):
        assert len(names) == len(row) // size
    for a, names_a in zip(rows, named, strict=True):
        for b, names_b in zip(rows, named, strict=True):
            for k in range(min(len(names_a), len(names_b))):
                assert (names_a[k] == names_b[k]) == (a[: (k + 1) * size] == b[: (k + 1) * size])


@given(prompts, st.integers(1, 9), st.integers(1, 9))
def test_hashes_of_any_block_size_never_claim_too_much(rows, trace_block, block):
    namer = BlockNamer(block)
    named = []
    for row in rows:
        hashes = [tuple(row[i : i + trace_block]) for i in range(0, len(row), trace_block)]
        named.append(namer.names(BlockHashes(hashes, trace_block), len(row), 1))
    for a, names_a in zip(rows, named, strict=True):
        assert len(names_a) == len(a) // block
        for b, names_b in zip(rows, named, strict=True):
            for k in range(min(len(names_a), len(names_b))):
                end = (k + 1) * block
                known = -(-end // trace_block) * trace_block  # what the hashes say ends at a block of theirs
                same_hashes = a[:known] == b[:known]
                assert (names_a[k] == names_b[k]) == same_hashes
                if names_a[k] == names_b[k]:
                    assert a[:end] == b[:end]


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 30)), min_size=2, max_size=6), st.integers(1, 8))
def test_a_grown_session_repeats_its_context(turns, size):
    namer, context, previous = BlockNamer(size), 0, ()
    for new, output in turns:
        prompt = context + new
        names = namer.names(Grown(context) if context else None, prompt, output, "s")
        assert len(names) == (prompt + output) // size
        shared = context // size
        assert list(names[:shared]) == list(previous[:shared])
        assert len(set(names)) == len(names)
        assert not set(names[shared:]) & set(previous)
        context, previous = prompt + output, names


def test_origins_never_meet_and_names_are_the_whole_numbers_rising_along_a_prompt():
    namer = BlockNamer(4)
    ids = namer.names(TokenIds(array("i", range(16))), 16, 1)
    hashes = namer.names(BlockHashes([0, 1, 2, 3], 4), 16, 1)
    session = namer.names(None, 16, 4, "s")
    system = namer.names(SystemPrompt("g", 8), 16, 4)
    everything = [*ids, *hashes, *session, *system]
    assert sorted(everything) == list(range(len(everything)))
    assert all(list(names) == sorted(names) for names in (ids, hashes, session, system))


def test_a_system_prompt_is_shared_within_its_group_only():
    namer = BlockNamer(4)
    a, b, c = (namer.names(SystemPrompt(group, 10), 20, 4) for group in ("x", "x", "y"))
    assert a[:2] == b[:2]
    assert not set(a[2:]) & set(b)
    assert not set(a) & set(c)


def test_calls_that_share_nothing_have_no_names():
    assert BlockNamer(16).names(None, 100, 10) == ()
