import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from kernels import reference, summaries
from kernels.selector import SCORE_BOUND, select
from tests.kernels import caches

BLOCK = 16


def built(cache: caches.Cache, kind: str, block: int = BLOCK) -> summaries.Summaries:
    blocks = -(-int(cache.seq_lens.max()) // block) + 1
    batch, heads, d = cache.q.shape[0], cache.k.shape[1], cache.q.shape[2]
    out = summaries.allocate(batch, heads, blocks, d, kind=kind, dtype=cache.q.dtype, device=cache.q.device, block=block)
    return summaries.build(out, cache.k, cache.seq_lens, cache.table)


def check(cache: caches.Cache, kind: str, k: int, sink: int = 1, local: int = 2, chunk: int = 16) -> None:
    s = built(cache, kind)
    scores = torch.full(s.data.shape[:3], float("nan"), device=cache.q.device)
    got = select(cache.q, s, cache.seq_lens, k, sink_blocks=sink, local_blocks=local, scores=scores, chunk=chunk)
    exact = reference.block_scores(cache.q, *s.dequantised())
    for b in range(cache.q.shape[0]):
        n = int(cache.seq_lens[b])
        want = reference.top_blocks(scores[b].cpu(), n, k, BLOCK, sink, local)
        assert torch.equal(got[b].cpu(), want)
        span = slice(sink, max(sink, -(-n // BLOCK) - local))
        if exact[b, :, span].numel():
            off = (scores[b, :, span] - exact[b, :, span]).abs().max() / exact[b, :, span].abs().max()
            assert off <= SCORE_BOUND[s.data.dtype]


@pytest.mark.parametrize("kind", summaries.KINDS)
@pytest.mark.parametrize("group", [1, 7])
@pytest.mark.parametrize("k", [1, 5])
def test_every_kind_group_and_budget(kind: str, group: int, k: int) -> None:
    check(caches.make(group + k, [300, 90], group=group), kind, k)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_other_dtypes(dtype: torch.dtype) -> None:
    check(caches.make(2, [300], dtype=dtype), "minmax", 3)


@settings(max_examples=5, phases=[Phase.generate])
@given(
    lens=st.lists(st.integers(1, 300), min_size=1, max_size=4),
    k=st.integers(1, 9),
    sink=st.integers(0, 2),
    local=st.integers(1, 3),
    group=st.integers(1, 8),
    kind=st.sampled_from(summaries.KINDS),
    seed=st.integers(0, 2**20),
)
def test_any_batch(lens: list[int], k: int, sink: int, local: int, group: int, kind: str, seed: int) -> None:
    lens = [max(lens[0], 16 * k), *lens[1:]]
    check(caches.make(seed, lens, heads_kv=1, group=group, d=16), kind, k, sink, local)


def test_ties_go_to_the_lower_block() -> None:
    cache = caches.make(3, [640], page=None)
    cache.k[:, :, :640] = cache.k[:, :, :1]
    got = select(cache.q, built(cache, "minmax"), cache.seq_lens, 6, chunk=16)
    assert got.tolist() == [[[1, 2, 3, 4, 5, 6]] * 2]


def test_a_planted_key_brings_its_block_to_the_top() -> None:
    cache = caches.make(4, [640], heads_kv=1, group=1, page=None)
    cache.k[0, 0, 5 * BLOCK + 3] = cache.q[0, 0] * 4
    cache.k[0, 0, 5 * BLOCK + 4 : 6 * BLOCK] = -cache.q[0, 0]
    assert int(select(cache.q, built(cache, "minmax"), cache.seq_lens, 1)[0, 0, 0]) == 5
    assert int(select(cache.q, built(cache, "minmax_fp8"), cache.seq_lens, 1)[0, 0, 0]) == 5


@pytest.mark.parametrize("kind", summaries.KINDS)
def test_appending_token_by_token_equals_building_at_once(kind: str) -> None:
    cache = caches.make(5, [47, 18], dtype=torch.bfloat16)
    whole = built(cache, kind)
    grown = summaries.allocate(2, 2, whole.blocks, 32, kind=kind, dtype=torch.bfloat16, device=caches.DEVICE, block=BLOCK)
    k, v = torch.full_like(cache.k, float("nan")), torch.full_like(cache.v, float("nan"))
    lens = torch.tensor([29, 0], dtype=torch.int32, device=caches.DEVICE)
    k.copy_(cache.k)
    summaries.build(grown, k, lens, cache.table)
    for step in range(18):
        lens += 1
        at = [(cache.table[b, (int(lens[b]) - 1) // 16], (int(lens[b]) - 1) % 16) for b in range(2)]
        new_k, new_v = (torch.stack([x[p, :, t] for p, t in at]) for x in (cache.k, cache.v))
        for p, t in at:
            k[p, :, t] = float("nan")
        summaries.append(grown, new_k, new_v, k, v, lens, cache.table)
        assert all(torch.equal(k[p, :, t], cache.k[p, :, t]) for p, t in at), step
        assert all(torch.equal(v[p, :, t], cache.v[p, :, t]) for p, t in at), step
    for mine, theirs in zip(grown.dequantised(), whole.dequantised(), strict=True):
        assert torch.equal(mine, theirs)


def test_keys_beyond_two_to_the_31_elements_are_summarised_and_appended() -> None:
    if torch.cuda.is_available():
        pytest.skip("the GPU benchmark summarises caches of this size whole")
    near, k = caches.far_apart(13, 40)
    want = built(near, "minmax")
    got = summaries.allocate(1, 1, want.blocks, 16, kind="minmax", dtype=torch.bfloat16, device="cpu", block=BLOCK)
    summaries.build(got, k, near.seq_lens, near.table)
    assert torch.equal(got.data, want.data)
    token = torch.full((1, 1, 16), 9.0, dtype=torch.bfloat16)
    for made, cache in ((want, near.k), (got, k)):
        summaries.append(made, token, token, cache, cache, near.seq_lens + 1, near.table)
    assert torch.equal(got.data, want.data)
    assert torch.equal(got.data[0, 0, 2, 1], token[0, 0])


def test_fp8_bounds_contain_the_keys_at_any_magnitude() -> None:
    cache = caches.make(6, [300], dtype=torch.float32, page=None)
    cache.k[0, 0, :300] *= torch.logspace(-6, 4, 300, device=caches.DEVICE)[:, None]
    low, high = built(cache, "minmax_fp8").dequantised()
    true_low, true_high = built(cache, "minmax").dequantised()
    assert bool((low <= true_low).all())
    assert bool((high >= true_high).all())
    largest = torch.maximum(true_low.abs(), true_high.abs()).amax(-1, keepdim=True)
    assert bool(((high - true_high) <= 2**-3 * true_high.abs() + 2**-8 * largest).all())
