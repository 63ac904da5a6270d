"""KV tiers: evicted prefixes come back instead of being recomputed, each tier is least recently used, and transfers
take their time.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.config import EngineConfig
from sim.engine.interface import Request
from sim.engine.kv.tiers import TieredKvCacheManager, tier_hit_rates, tiers_of
from sim.engine.registry import step_settings
from sim.engine.step_clock import StepTime
from sim.engine.vllm import VllmScheduler
from sim.errors import UsageError
from sim.specs.precision import Precision
from sim.ticks import TICK_S
from tests.price.shapes import QWEN_7B, plausible_rates

Texts = list[tuple[int, int]]


def config(blocks: int, **options: float) -> EngineConfig:
    return EngineConfig(num_gpu_blocks=blocks + 1, max_num_seqs=1, max_model_len=4096, options=options)


def serve(scheduler: VllmScheduler, texts: Texts, steps: StepTime | None = None) -> tuple[list[int], int]:
    """(cached tokens of each request, ticks), the requests one after the other: (text, blocks of prompt) each, one
    token out.
    """
    cached, ticks = [], 0
    for i, (text, blocks) in enumerate(texts):
        request = Request(str(i), 0.0, 16 * blocks + 1, 1, [(text, block) for block in range(blocks)])
        scheduler.add(request)
        while scheduler.unfinished():
            iteration = scheduler.schedule()
            ticks += steps.iteration(iteration) if steps else 0
            scheduler.complete(iteration)
        cached.append(request.cached_tokens)
    return cached, ticks


TEXTS = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 12)), min_size=1, max_size=30)


@given(texts=TEXTS, hbm=st.integers(13, 30))
def test_with_room_below_nothing_is_ever_recomputed(texts: Texts, hbm: int) -> None:
    tiered, _ = serve(VllmScheduler(config(hbm, host_blocks=10_000)), texts)
    roomy, _ = serve(VllmScheduler(config(10_000)), texts)
    assert tiered == roomy


@given(texts=TEXTS, hbm=st.integers(13, 30), host=st.integers(1, 20), disk=st.integers(0, 20))
def test_lookups_are_found_in_one_place_or_recomputed(texts: Texts, hbm: int, host: int, disk: int) -> None:
    scheduler = VllmScheduler(config(hbm, host_blocks=host, disk_blocks=disk))
    cached, _ = serve(scheduler, texts)
    kv = scheduler.kv
    assert isinstance(kv, TieredKvCacheManager)
    assert kv.lookups == sum(blocks for _, blocks in texts)
    assert 16 * sum(kv.hits.values()) == sum(cached)
    assert sum(kv.hits.values()) <= kv.lookups
    bare, _ = serve(VllmScheduler(config(hbm)), texts)
    assert all(with_tiers >= without for with_tiers, without in zip(cached, bare, strict=True))


def test_a_tier_drops_its_least_recently_used_block_to_the_next() -> None:
    # 13 blocks of HBM hold one text of 12; the host holds 12 more, the disk the rest
    scheduler = VllmScheduler(config(13, host_blocks=12, disk_blocks=100))
    cached, _ = serve(scheduler, [(0, 12), (1, 12), (2, 12), (2, 12), (1, 12), (0, 12)])
    assert cached == [0, 0, 0, 192, 192, 192]
    kv = scheduler.kv
    assert isinstance(kv, TieredKvCacheManager)
    assert kv.hits["hbm"] >= 11
    assert kv.hits["host"] > 0
    assert kv.hits["disk"] > 0


def test_a_reload_takes_its_bytes_over_the_link_and_beats_recomputing() -> None:
    def took(**options: float) -> int:
        limits = config(13, **options)
        steps = StepTime(QWEN_7B, Precision(), plausible_rates(), **step_settings(limits))
        return serve(VllmScheduler(limits), [(0, 12), (1, 12), (0, 12)], steps)[1]

    block_bytes = 16 * 28 * 2 * 4 * 128 * 2
    fast, slow = (took(host_blocks=100, host_gb_per_s=rate, host_latency_us=0) for rate in (20.0, 10.0))
    # at half the rate the 12 blocks take twice as long
    assert (slow - fast) * TICK_S == pytest.approx(12 * block_bytes / 20e9)
    assert took(host_blocks=100, host_gb_per_s=20.0, tier_overlap=1.0) < fast
    assert fast < took()


@pytest.mark.parametrize(
    "options",
    [{"host_blocks": -1}, {"host_blocks": 5, "host_gb_per_s": 0}, {"host_blocks": 5, "tier_overlap": 2.0}, {"tier_blocks": 5}],
)
def test_absurd_tiers_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=r"KV tiers|tier_blocks"):
        VllmScheduler(config(10, **options))


def test_tiers_need_prefix_caching() -> None:
    with pytest.raises(UsageError, match="prefix caching"):
        tiers_of(EngineConfig(enable_prefix_caching=False, options={"host_blocks": 5}))


def test_nothing_looked_up_is_nothing_found() -> None:
    assert tier_hit_rates([VllmScheduler(config(10, host_blocks=4))]) == {"kv_hit_rate_hbm": 0.0, "kv_hit_rate_host": 0.0}
