"""Under prefix hits, preemption and reuse of pages, every selection is that of a float64 reference on the cache as it is."""

import pytest
import torch

from kernels import reference
from kernels.sparse_decode import Scratch, Settings, SparseLayer, split_lens
from tests.kernels import caches
from tests.kernels.paged_engine import PAGE, D, PagedEngine

GROUP, BLOCKS = 2, 12


def bounds(engine: PagedEngine, table: torch.Tensor, b: int, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Lowest and highest key of each full block of sequence b, [1, heads, blocks, D] float64."""
    whole = reference.tokens_of(engine.keys, table, b, n // PAGE * PAGE).double().unflatten(1, (-1, PAGE))
    return whole.amin(2)[None], whole.amax(2)[None]


def selections(seed: int, steps: int) -> tuple[int, PagedEngine]:
    """Runs a schedule; asserts at every step. Returns how many selections were compared."""
    engine = PagedEngine(seed)
    kind = ("minmax", "minmax_fp8")[seed % 2]
    settings = Settings(k=1 + seed % 3, sink=seed % 2, window=1 + seed % 2, summaries=kind, dense_below=3 * PAGE)
    keys, values = engine.keys.to(caches.DEVICE), engine.values.to(caches.DEVICE)
    layer = SparseLayer(settings, keys, values, Scratch.allocate(settings, 4, BLOCKS, GROUP, 1, D, caches.DEVICE))
    compared = 0
    for _ in range(steps):
        table, starts, lens, most = engine.step()
        keys.copy_(engine.keys)
        on_device = [x.to(caches.DEVICE) for x in (table, starts, lens)]
        layer.update(*on_device, most)
        sparse, dense = split_lens(
            on_device[1], on_device[2], settings.crossover(1), *(torch.zeros(4, dtype=torch.int32, device=keys.device) for _ in "12")
        )
        assert (sparse + dense).tolist() == lens.tolist()
        decodes = int((starts.diff() == 1).sum())
        if not decodes:
            continue
        q = torch.randint(-4, 5, (decodes, GROUP, D), generator=engine.gen).to(torch.bfloat16)
        got = layer.select(q.to(caches.DEVICE), on_device[0][:decodes], sparse[:decodes]).cpu()
        for b in range(decodes):
            n = int(lens[b])
            assert int(sparse[b]) == (n if n >= 3 * PAGE else 0)
            if n >= 3 * PAGE:
                scores = reference.block_scores(q[b : b + 1], *bounds(engine, table, b, n))[0]
                want = reference.top_blocks(scores, n, got.shape[2], PAGE, settings.sink, settings.window)
                assert torch.equal(got[b], want), (seed, n)
                compared += 1
            else:
                assert (got[b] == -1).all()
    return compared, engine


def test_schedules_of_a_small_engine() -> None:
    runs = [selections(seed, 14) for seed in range(6)]
    assert sum(compared for compared, _ in runs) > 20
    assert sum(engine.hits for _, engine in runs) > 5
    assert sum(engine.preemptions for _, engine in runs) > 3


@pytest.mark.slow
def test_a_thousand_schedules() -> None:
    assert sum(selections(seed, 14)[0] for seed in range(1000)) > 4000


def test_rows_of_length_zero_are_left_to_the_engine() -> None:
    cache = caches.make(1, [700, 650], heads_kv=2, group=3, d=16, page=PAGE)
    settings = Settings(k=2, dense_below=0)
    layer = SparseLayer(settings, cache.k, cache.v, Scratch.allocate(settings, 2, 7, 6, 2, 16, caches.DEVICE))
    starts = torch.tensor([0, 700, 1350], dtype=torch.int32, device=caches.DEVICE)
    layer.update(cache.table, starts, cache.seq_lens, 700)
    lens = cache.seq_lens * torch.tensor([1, 0], dtype=torch.int32, device=caches.DEVICE)
    apart = torch.randn(2, 9, 16, device=caches.DEVICE).to(torch.bfloat16)[:, 1:7]  # a slice of a fused projection
    out = torch.full((2, 6, 16), 7.0, dtype=torch.bfloat16, device=caches.DEVICE)
    chosen = layer.attend(apart, cache.table, lens, out, 16**-0.5)
    want = reference.gather_decode(apart, cache.k, cache.v, lens, chosen, cache.table)
    assert (out[1] == 7.0).all()
    assert reference.relative_error(out[0], want[0]) < 1e-2


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"k": 0}, "k"),
        ({"blocks": 3}, "blocks"),
        ({"window": 0}, "window"),
        ({"k": 200}, "k"),
        ({"summaries": "mean"}, "summaries"),
        (3, "mapping"),
    ],
)
def test_wrong_settings_are_named(given: object, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        Settings.parse(given)


@pytest.mark.parametrize(("k", "map_of_an_h100"), [(8, [10240, 6144, 4096, 3072, 3072]), (32, [30720, 18432, 12288, 10240, 8192])])
def test_the_crossover_is_the_regime_maps(k: int, map_of_an_h100: list[int]) -> None:
    for batch, crossing in zip((1, 2, 4, 8, 16), map_of_an_h100, strict=True):
        assert abs(Settings(k=k).crossover(batch) - crossing) <= 1024
