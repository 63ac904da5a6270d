import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from kernels import partials, reference
from kernels.dense_decode import ERROR_BOUND, dense_decode
from tests.kernels import caches


def error(cache: caches.Cache, **options) -> float:
    reference_options = {k: options[k] for k in ("sink", "window", "scale") if k in options}
    out = torch.full_like(cache.q, float("nan"))
    dense_decode(*cache.args, out=out, **options)
    return reference.relative_error(out, reference.dense_decode(*cache.args, **reference_options))


FIRST, *OTHERS = ERROR_BOUND


@pytest.mark.parametrize(("dtype", "group"), [*((FIRST, group) for group in range(1, 9)), *((dtype, 7) for dtype in OTHERS)])
def test_every_group_size_and_dtype(dtype: torch.dtype, group: int) -> None:
    cache = caches.make(group, [37, 70], heads_kv=1, group=group, dtype=dtype)
    assert error(cache, tile=32, splits=2) <= ERROR_BOUND[dtype]


@pytest.mark.parametrize("page", [16, 32, 256, None])
@pytest.mark.parametrize("token_major", [False, True])
def test_every_page_size_and_layout(page: int | None, token_major: bool) -> None:
    cache = caches.make(3, [1, 77, 64], page=page, token_major=token_major)
    assert error(cache, tile=32, splits=2) <= ERROR_BOUND[torch.bfloat16]


@settings(max_examples=6, phases=[Phase.generate])
@given(
    lens=st.lists(st.integers(1, 150), min_size=1, max_size=9),
    splits=st.integers(1, 5),
    tile=st.sampled_from([16, 64]),
    d=st.sampled_from([16, 64]),
    seed=st.integers(0, 2**20),
)
def test_any_batch_of_lengths(lens: list[int], splits: int, tile: int, d: int, seed: int) -> None:
    cache = caches.make(seed, lens, d=d)
    assert error(cache, splits=splits, tile=tile) <= ERROR_BOUND[torch.bfloat16]


@pytest.mark.parametrize(("sink", "window"), [(0, 1), (4, 16), (20, 33), (0, 500), (300, 10)])
def test_sink_and_window(sink: int, window: int) -> None:
    cache = caches.make(7, [5, 90, 200])
    assert error(cache, sink=sink, window=window, tile=16) <= ERROR_BOUND[torch.bfloat16]


@pytest.mark.parametrize(("heads", "tile", "page", "lens"), [
    (1, 16, 32, [37, 70]), (1, 32, 32, [64, 1, 32]), (2, 64, 32, [37, 70]), (4, 64, 16, [33, 7]), (4, 16, 16, [37]), (4, 128, 32, [64, 40]),
])  # fmt: skip
def test_tma_tiles_of_one_or_several_heads_of_a_page(heads: int, tile: int, page: int, lens: list[int]) -> None:
    cache = caches.make(12, lens, heads_kv=4, group=7, d=16, page=page)
    for splits in (1, 3):
        assert error(cache, tma=True, heads=heads, tile=tile, splits=splits) <= ERROR_BOUND[torch.bfloat16]


def test_tma_tiles_of_a_contiguous_cache() -> None:
    cache = caches.make(13, [77, 61], page=None)
    assert error(cache, tma=True, tile=16, splits=3) <= ERROR_BOUND[torch.bfloat16]


def test_scale_is_applied() -> None:
    cache = caches.make(8, [50])
    assert error(cache, scale=0.5) <= ERROR_BOUND[torch.bfloat16]


def test_an_empty_sequence_gives_zeros_and_leaves_its_neighbours_right() -> None:
    cache = caches.make(9, [33, 1])
    cache.seq_lens[1] = 0
    out = dense_decode(*cache.args, splits=2, tile=16)
    assert torch.equal(out[1], torch.zeros_like(out[1]))
    assert reference.relative_error(out[:1], reference.dense_decode(*cache.args)[:1]) <= ERROR_BOUND[torch.bfloat16]


def test_a_workspace_is_reusable_and_results_repeat_bit_for_bit() -> None:
    cache = caches.make(10, [90, 140])
    work = partials.Workspace.allocate(4, 3, 3, 32, cache.q.device)
    first = dense_decode(*cache.args, splits=3, tile=16, workspace=work)
    again = dense_decode(*cache.args, splits=3, tile=16, workspace=work)
    assert torch.equal(first, again)


def test_more_than_two_to_the_31_elements_are_addressed() -> None:
    if torch.cuda.is_available():
        pytest.skip("the GPU benchmark reads caches of this size whole")
    near, k = caches.far_apart(11, 40)
    out = dense_decode(near.q, k, k, near.seq_lens, near.table, splits=2, tile=16)
    want = reference.dense_decode(near.q, near.k, near.k, near.seq_lens, near.table)
    assert reference.relative_error(out, want) <= ERROR_BOUND[torch.bfloat16]
