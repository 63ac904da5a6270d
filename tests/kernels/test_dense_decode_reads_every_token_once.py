"""Splits and chunks of the work queue: every token counts once, and results repeat bit for bit."""

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from kernels import partials, reference
from kernels.dense_decode import ERROR_BOUND, dense_decode
from tests.kernels import caches


@settings(max_examples=8, phases=[Phase.generate])
@given(
    lens=st.lists(st.integers(1, 200), min_size=1, max_size=4),
    splits=st.integers(1, 4),
    chunks=st.integers(1, 6),
    queued=st.sampled_from([1 / 16, 0.3, 1.0]),
    page=st.sampled_from([16, 32]),
    seed=st.integers(0, 2**20),
)
def test_each_token_of_any_batch_counts_once(lens: list[int], splits: int, chunks: int, queued: float, page: int, seed: int) -> None:
    """With a query of zeros every weight is one, so the parts of a row hold the number of its tokens and the sum of its values: exact
    integers here."""
    cache = caches.make(seed, lens, heads_kv=2, group=3, d=16, page=page)
    cache.q.zero_()
    cache.v.copy_(torch.where(cache.v.isnan(), cache.v, torch.round(cache.v * 4)))
    work = partials.Workspace.allocate(2 * len(lens), splits + chunks, 3, 16, cache.q.device)
    out = dense_decode(*cache.args, tma=True, heads=1, tile=16, splits=splits, chunks=chunks, queued=queued, workspace=work)
    counts = work.ml.view(len(lens), 2, splits + chunks, 2, 3)[:, :, :, 1].sum(2)
    sums = work.o.view(len(lens), 2, splits + chunks, 3, 16).sum(2)
    values = reference.dense_decode(*cache.args) * cache.seq_lens[:, None, None]
    assert torch.equal(counts, cache.seq_lens[:, None, None].expand_as(counts).float())
    assert torch.equal(sums.flatten(1, 2), values.round().float())
    assert reference.relative_error(out, reference.dense_decode(*cache.args)) <= ERROR_BOUND[torch.bfloat16]


@pytest.mark.parametrize("lens", [[100, 5, 40], [33]])
def test_the_result_does_not_depend_on_which_program_claims_a_chunk(lens: list[int]) -> None:
    cache = caches.make(1, lens, heads_kv=2, group=7, d=32, page=32)
    work = partials.Workspace.allocate(6, 8, 7, 32, cache.q.device)
    options = {"tma": True, "tile": 16, "splits": 2, "chunks": 5, "queued": 0.5, "workspace": work}
    found = [dense_decode(*cache.args, per_sm=programs, **options) for programs in (1, 2, 4, 1)]
    assert all(torch.equal(found[0], other) for other in found[1:])
    assert int(work.claims) == 0
    assert reference.relative_error(found[0], reference.dense_decode(*cache.args)) <= ERROR_BOUND[torch.bfloat16]


def test_keys_beside_values_of_one_pool() -> None:
    cache = caches.make(2, [70, 33], heads_kv=2, group=3, d=32, page=32)
    beside = torch.stack([cache.k, cache.v], dim=2)  # pages, KV heads, 2, page, D
    for options in ({"heads": 1}, {"heads": 1, "chunks": 3, "queued": 0.4}, {"heads": 2}):
        options |= {"splits": 2, "tma": True, "tile": 16}
        out = dense_decode(cache.q, beside[:, :, 0], beside[:, :, 1], cache.seq_lens, cache.table, **options)
        assert torch.equal(out, dense_decode(*cache.args, **options))


@pytest.mark.parametrize("group", [1, 7, 8])
def test_tokens_fetched_as_two_halves(group: int) -> None:
    cache = caches.make(3, [70, 33, 1], heads_kv=2, group=group, d=128, page=32)
    options = {"tma": True, "heads": 1, "tile": 32, "splits": 1, "chunks": 2, "queued": 0.4}
    want = reference.dense_decode(*cache.args)
    for halves in (True, False):
        assert reference.relative_error(dense_decode(*cache.args, halves=halves, **options), want) <= ERROR_BOUND[torch.bfloat16]


def test_tokens_that_are_no_two_halves_are_refused() -> None:
    cache = caches.make(3, [33], heads_kv=2, group=9, d=128, page=32)
    with pytest.raises(ValueError, match=r"^halves:"):
        dense_decode(*cache.args, tma=True, heads=1, tile=32, chunks=2, queued=0.4, halves=True)
