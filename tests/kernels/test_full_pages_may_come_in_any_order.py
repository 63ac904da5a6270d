"""Dense attention is a sum over tokens: whatever the order of the full pages, it is the answer of the sequence's own order."""

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from kernels import pools, reference
from kernels.dense_decode import ERROR_BOUND, dense_decode
from kernels.page_order import SortedPages, sort_pages
from tests.kernels import caches

WAYS = [
    {"tile": 16, "splits": 3}, {"bulk": True, "heads": 1, "tile": 16, "splits": 2}, {"bulk": True, "heads": 2, "tile": 32, "splits": 2},
    {"bulk": True, "heads": 1, "tile": 16, "splits": 2, "chunks": 3, "queued": 0.4},
]  # fmt: skip


@settings(max_examples=6, deadline=None, phases=[Phase.generate])
@given(lens=st.lists(st.integers(1, 110), min_size=1, max_size=3), way=st.sampled_from(WAYS), seed=st.integers(0, 2**20))
def test_any_order_of_full_pages_gives_the_same_answer(lens: list[int], way: dict, seed: int) -> None:
    cache = caches.make(seed, lens, d=16)
    want = reference.dense_decode(*cache.args)
    shuffled, gen = cache.table.clone(), torch.Generator().manual_seed(seed)
    for b, n in enumerate(lens):
        full = n // 16
        shuffled[b, :full] = cache.table[b, torch.randperm(full, generator=gen).to(cache.table.device)]
    for order in (SortedPages(shuffled), sort_pages(cache.table, cache.seq_lens, 16)):
        out = torch.full_like(cache.q, float("nan"))
        dense_decode(cache.q, cache.k, cache.v, cache.seq_lens, order, out=out, **way)
        assert reference.relative_error(out, want) <= ERROR_BOUND[torch.bfloat16]


@settings(max_examples=50, deadline=None)
@given(lens=st.lists(st.integers(0, 200), min_size=1, max_size=5), page=st.sampled_from([16, 64]), seed=st.integers(0, 2**20))
def test_full_pages_ascend_and_nothing_else_moves(lens: list[int], page: int, seed: int) -> None:
    gen = torch.Generator().manual_seed(seed)
    table = torch.randint(-3, 2**31 - 1, (len(lens), 14), generator=gen, dtype=torch.int32)
    seq_lens = torch.tensor(lens, dtype=torch.int32)
    found = sort_pages(table, seq_lens, page).table
    assert found.dtype == torch.int32
    for b, n in enumerate(lens):
        full = n // page
        assert found[b, :full].tolist() == sorted(table[b, :full].tolist())
        assert torch.equal(found[b, full:], table[b, full:])
    assert torch.equal(sort_pages(found, seq_lens, page).table, found)


@pytest.mark.parametrize("way", WAYS)
def test_a_table_that_ascends_gives_the_same_bits_sorted(way: dict) -> None:
    cache = caches.make(5, [70, 33], d=16)
    cache.table.copy_(sort_pages(cache.table, cache.seq_lens, 16).table)  # other pages in other places: another cache, and as good
    ascending = sort_pages(cache.table, cache.seq_lens, 16)
    assert torch.equal(ascending.table, cache.table)
    assert torch.equal(dense_decode(*cache.args, **way), dense_decode(cache.q, cache.k, cache.v, cache.seq_lens, ascending, **way))


def test_a_sorted_table_stays_right_while_its_sequence_grows() -> None:
    cache = caches.make(6, [90], d=16)
    early = torch.tensor([70], dtype=torch.int32, device=caches.DEVICE)
    order = sort_pages(cache.table, early, 16)
    for tokens in (71, 90):
        lens = torch.full_like(early, tokens)
        want = reference.dense_decode(cache.q, cache.k, cache.v, lens, cache.table)
        out = dense_decode(cache.q, cache.k, cache.v, lens, order, bulk=True, heads=1, tile=16, splits=2)
        assert reference.relative_error(out, want) <= ERROR_BOUND[torch.bfloat16]


def test_the_orders_a_benchmark_compares_are_what_they_are_called() -> None:
    batch, context, heads = 3, 4 * pools.PAGE, 2
    memory = torch.arange(2 * batch * context * heads * 16, dtype=torch.int32)
    table = torch.randperm(12, generator=torch.Generator().manual_seed(0), dtype=torch.int64).int().view(batch, -1)
    cell = pools.Cell(
        batch, context, [torch.zeros(batch, heads, 16)], [memory], heads, table, torch.full((batch,), context, dtype=torch.int32)
    )
    assert torch.equal(cell.sorted_table().table, table.sort(dim=1).values)
    assert cell.ascending_table().tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert cell.ascending_table(in_turn=True).tolist() == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    keys, values = cell.pages_by_head(0)
    step = pools.PAGE * 16
    assert [int(x[page, head, 0, 0]) for x in (keys, values) for page, head in ((0, 0), (1, 0), (0, 1))] == [
        0, 2 * step, 24 * step, step, 3 * step, 25 * step,
    ]  # fmt: skip
