"""KV in host RAM: a copy of all full blocks of prompts, loaded beside the iterations of others."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.config import EngineConfig
from sim.engine.host_tier import HostTier
from sim.engine.interface import Request
from sim.engine.rows import layout as at
from sim.engine.schedulers import VllmScheduler
from sim.errors import UsageError
from sim.ticks import TICKS_PER_S
from tests.examples import examples
from tests.runs import serve

BLOCKS = 12  # full blocks of a text
STEP = TICKS_PER_S // 100
Texts = list[int]


def config(hbm: int, **options: float) -> EngineConfig:
    return EngineConfig(num_gpu_blocks=hbm + 1, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=512, options=options)


def asked(texts: Texts, gap_s: float = 10.0) -> list[Request]:
    """One request after the other, each with a text of BLOCKS full blocks and a token more."""
    return [
        Request(str(i), gap_s * i, 16 * BLOCKS + 1, 1, [(text, block) for block in range(BLOCKS)], priority=i)
        for i, text in enumerate(texts)
    ]


def found(texts: Texts, hbm: int, link: tuple[int, int, int] = (1, 1, 0), **options: float) -> tuple[list[int], list[int]]:
    """Tokens that each request found, and of these in host RAM."""
    scheduler, requests = VllmScheduler(config(hbm, **options)), asked(texts)
    scheduler.copies_take(*link)
    serve(requests, scheduler, lambda _: STEP)
    return [r.cached_tokens for r in requests], [r.host_cached_tokens for r in requests]


def test_capacity_is_that_of_host_ram_and_not_its_sum_with_hbm() -> None:
    cycle = [0, 1, 0, 1, 0, 1]
    assert found(cycle, 13, host_blocks=BLOCKS)[0] == [0] * 6  # a cache of what HBM evicts would have found all
    cached, host = found(cycle, 13, host_blocks=2 * BLOCKS)
    assert cached == [0, 0, *[16 * BLOCKS] * 4]
    assert min(host[2:]) > 0


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.integers(13, 40))
def test_enough_of_it_finds_what_enough_hbm_would(texts: Texts, hbm: int) -> None:
    assert found(texts, hbm, host_blocks=1000)[0] == found(texts, 200)[0]


@settings(max_examples=examples(30))
@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.integers(1, 2 * BLOCKS + 5))
def test_blocks_that_were_forgotten_are_used_again(texts: Texts, capacity: int) -> None:
    scheduler = VllmScheduler(config(30, host_blocks=capacity))
    scheduler.copies_take(1, 1, 0)
    serve(asked(texts), scheduler, lambda _: STEP)
    s, e, spare = scheduler._s, scheduler._e, set[int]()
    chunk = s.spare_chunk
    while chunk != at.NOBODY:
        assert chunk not in spare
        spare.add(chunk)
        chunk = e.chunks[chunk].behind
    used = {int(e.table[s.first_host_slot + slot]) - 1 for slot in range(s.host_mask + 1)} - {-1}
    made = s.next_chunk - s.first_chunk
    assert made <= capacity
    assert not used & spare
    assert len(used) + len(spare) == made
    assert s.host_blank == capacity - len(used)


def test_a_text_is_kept_from_its_second_time_on_where_two_are_asked_for() -> None:
    apart = [0, 1, 2, 0, 1, 2, 0, 1, 2]  # HBM keeps one text
    assert found(apart, 13, host_blocks=3 * BLOCKS)[1] == [0, 0, 0, *[16 * BLOCKS] * 6]
    assert found(apart, 13, host_blocks=3 * BLOCKS, store_threshold=2)[1] == [*[0] * 6, *[16 * BLOCKS] * 3]
    assert found(apart, 13, host_blocks=3 * BLOCKS, store_threshold=2, max_tracker_size=2 * BLOCKS)[1] == [0] * 9  # forgotten before it


def test_a_chunk_is_found_whole_or_not_at_all() -> None:
    cached = found([0, 1, 0, 1], 13, host_blocks=2 * BLOCKS, chunk_tokens=5 * 16)[0]
    assert cached == [0, 0, *[16 * 10] * 2]  # of 12 blocks


def test_a_load_takes_its_bytes_over_the_link_and_nobody_else_waits() -> None:
    def served(load: int) -> tuple[float, float]:
        scheduler = VllmScheduler(config(26, host_blocks=100))
        scheduler.copies_take(1, load, 0)
        again = [*asked([0, 1, 2], 1.0), Request("decodes", 3.0, 1, 100), *asked([0, 0, 0, 0], 1.0)[3:]]
        again[-1].arrival_s = 3.1
        record = serve(again, scheduler, lambda _: STEP)
        assert again[-1].host_cached_tokens == 16 * (BLOCKS - 1)  # HBM has kept the first
        return float(record.requests["first_token_s"][-1]), float(record.requests["finish_s"][-2])

    (fast, beside), (slow, same) = served(1), served(STEP // 2)
    assert slow - fast == pytest.approx((BLOCKS - 1) * 0.005, abs=0.01)  # the next iteration begins up to one later
    assert beside == same


@pytest.mark.parametrize(
    "options",
    [
        {"host_blocks": -1},
        {"host_blocks": 5, "host_gb_per_s": 0.0},
        {"host_gb_per_s": 5.0},
        {"disk_blocks": 5},
        {"host_blocks": 5, "chunk_tokens": 24},
        {"host_blocks": 5, "chunk_tokens": 96},
        {"host_blocks": 5, "max_tracker_size": 9},
        {"host_blocks": 5, "store_threshold": 2, "max_tracker_size": 0},
        {"store_threshold": 2},
    ],
)
def test_absurd_options_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=r"host RAM|changes nothing without (host|store)_|no option 'disk_blocks'|max_tracker_size must"):
        VllmScheduler(config(10, **options))


def test_it_needs_prefix_caching() -> None:
    with pytest.raises(UsageError, match="prefix caching"):
        HostTier.of(EngineConfig(enable_prefix_caching=False, options={"host_blocks": 5}))
