import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from kernels import reference
from kernels.dense_decode import ERROR_BOUND, dense_decode
from kernels.gather_decode import gather_decode
from tests.kernels import caches


def error(cache: caches.Cache, selected: torch.Tensor, **options) -> float:
    keep = {k: options[k] for k in ("block", "sink_blocks", "local_blocks", "scale") if k in options}
    args = (cache.q, cache.k, cache.v, cache.seq_lens, selected, cache.table)
    out = torch.full_like(cache.q, float("nan"))
    gather_decode(*args, out=out, **options)
    return reference.relative_error(out, reference.gather_decode(*args, **keep))


FIRST, *OTHERS = ERROR_BOUND


@pytest.mark.parametrize(("dtype", "group"), [*((FIRST, group) for group in range(1, 9)), *((dtype, 7) for dtype in OTHERS)])
def test_every_group_size_and_dtype(dtype: torch.dtype, group: int) -> None:
    cache = caches.make(group, [90, 50], heads_kv=1, group=group, dtype=dtype)
    selected = caches.random_blocks(cache, 2, 16, group)
    assert error(cache, selected, block=16, tile=16) <= ERROR_BOUND[dtype]


@pytest.mark.parametrize("page", [16, 64, None])
@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("tile", [16, 64])
def test_blocks_pages_and_tiles_need_not_agree(page: int | None, block: int, tile: int) -> None:
    cache = caches.make(4, [333, 20], page=page, token_major=block == 32)
    selected = caches.random_blocks(cache, 3, block, 5)
    assert error(cache, selected, block=block, tile=tile) <= ERROR_BOUND[torch.bfloat16]


@settings(max_examples=10, phases=[Phase.generate])
@given(
    lens=st.lists(st.integers(1, 200), min_size=1, max_size=9),
    k=st.integers(1, 5),
    sink=st.integers(0, 2),
    local=st.integers(1, 3),
    seed=st.integers(0, 2**20),
)
def test_any_keep_set(lens: list[int], k: int, sink: int, local: int, seed: int) -> None:
    lens = [max(lens[0], 16 * k), *lens[1:]]
    cache = caches.make(seed, lens, heads_kv=1, group=2, d=16)
    selected = caches.random_blocks(cache, k, 16, seed, sink, local)
    bound = ERROR_BOUND[torch.bfloat16]
    assert error(cache, selected, block=16, sink_blocks=sink, local_blocks=local, tile=32) <= bound


def test_selecting_every_block_is_dense_attention() -> None:
    cache = caches.make(5, [160], dtype=torch.float32)
    selected = torch.arange(1, 8, dtype=torch.int32).expand(1, 2, 7).contiguous().to(caches.DEVICE)
    sparse = gather_decode(cache.q, cache.k, cache.v, cache.seq_lens, selected, cache.table, block=16)
    dense = dense_decode(*cache.args)
    assert reference.relative_error(sparse, dense) <= ERROR_BOUND[torch.float32]


def test_blocks_that_are_sink_or_local_or_beyond_the_end_are_read_once_or_not_at_all() -> None:
    cache = caches.make(6, [160], dtype=torch.float32)
    selected = torch.tensor([[[0, 9, 3], [8, 500, 3]]], dtype=torch.int32, device=caches.DEVICE)
    only = torch.tensor([[[3, -1, -1]] * 2], dtype=torch.int32, device=caches.DEVICE)
    got = gather_decode(cache.q, cache.k, cache.v, cache.seq_lens, selected, cache.table, block=16)
    want = reference.gather_decode(cache.q, cache.k, cache.v, cache.seq_lens, only, cache.table, block=16)
    assert reference.relative_error(got, want) <= ERROR_BOUND[torch.float32]


def test_pages_in_host_memory_give_the_same_bits_as_pages_on_the_device() -> None:
    cache = caches.make(7, [200, 77])
    selected = caches.random_blocks(cache, 3, 16, 8)
    host_k, host_v = (x.cpu().pin_memory() if torch.cuda.is_available() else x.clone() for x in (cache.k, cache.v))
    on_device = gather_decode(cache.q, cache.k, cache.v, cache.seq_lens, selected, cache.table, block=16)
    mixed = torch.where(torch.arange(cache.table.shape[1], device=caches.DEVICE) % 3 > 0, -1 - cache.table, cache.table)
    got = gather_decode(cache.q, cache.k, cache.v, cache.seq_lens, selected, mixed, block=16, k_host=host_k, v_host=host_v)
    assert torch.equal(got, on_device)
    everywhere = gather_decode(
        cache.q, torch.full_like(cache.k, float("nan")), torch.full_like(cache.v, float("nan")), cache.seq_lens, selected,
        -1 - cache.table, block=16, k_host=host_k, v_host=host_v,
    )  # fmt: skip
    assert torch.equal(everywhere, on_device)


def test_more_than_two_to_the_31_elements_are_addressed() -> None:
    if torch.cuda.is_available():
        pytest.skip("the GPU benchmark reads caches of this size whole")
    near, k = caches.far_apart(9, 40)
    selected = torch.tensor([[[0]]], dtype=torch.int32)
    args = (near.seq_lens, selected, near.table)
    out = gather_decode(near.q, k, k, *args, block=16, sink_blocks=0, tile=16)
    on_host = gather_decode(near.q, k[:1], k[:1], near.seq_lens, selected, -1 - near.table, k_host=k, v_host=k, block=16, sink_blocks=0)
    want = reference.gather_decode(near.q, near.k, near.k, *args, block=16, sink_blocks=0)
    assert reference.relative_error(out, want) <= ERROR_BOUND[torch.bfloat16]
    assert reference.relative_error(on_host, want) <= ERROR_BOUND[torch.bfloat16]
