"""A request that no schedule can finish is refused by name when it is queued; the largest that fits is served."""

import pytest

from sim.cluster.rows_engine import RowsEngine
from sim.engine.config import EngineConfig
from sim.engine.interface import Request
from sim.engine.iteration_cost import IterationCost
from sim.engine.schedulers import LlamaCppScheduler, VllmScheduler
from sim.errors import UsageError
from sim.specs.precision import Precision
from sim.ticks import MOST_TICKS
from tests.price.shapes import QWEN_7B, plausible_rates

CONFIG = EngineConfig(num_gpu_blocks=5, block_size=16, max_model_len=100, max_num_batched_tokens=8192)


@pytest.mark.parametrize(
    ("prompt", "output", "reason"),
    [(90, 11, "max_model_len 100"), (60, 6, "65 KV slots"), (0, 4, "at least one"), (4, 0, "at least one")],
)
def test_refused_with_its_name_and_the_limit(prompt: int, output: int, reason: str) -> None:
    with pytest.raises(UsageError, match=rf"request 'r7'.*{reason}"):
        VllmScheduler(CONFIG).add(Request("r7", 0.0, prompt, output))


@pytest.mark.parametrize(("prompt", "output"), [(90, 11), (60, 6), (30, 60), (0, 4), (4, 0)])
def test_the_engine_in_rows_refuses_the_same(prompt: int, output: int) -> None:
    engine = RowsEngine(CONFIG, IterationCost(QWEN_7B, Precision(), plausible_rates()).steps, {}, {})
    with pytest.raises(UsageError, match="request 'r7'"):
        engine.add(Request("r7", 0.0, prompt, output), 0)


def test_machine_code_refuses_more_time_than_it_can_count() -> None:
    engine = RowsEngine(CONFIG, IterationCost(QWEN_7B, Precision(), plausible_rates()).steps, {}, {})
    engine.add(Request("in time", 0.0, 4, 4), MOST_TICKS + 1)  # plain Python counts on
    engine._fast = True
    with pytest.raises(OverflowError, match="more simulated time"):
        engine.add(Request("too late", 0.0, 4, 4), MOST_TICKS + 1)


@pytest.mark.parametrize(("prompt", "output"), [(0, 4), (4, 0), (90, 11)])
def test_llamacpp_refuses_the_same(prompt: int, output: int) -> None:
    with pytest.raises(UsageError, match="request 'r7'"):
        LlamaCppScheduler(EngineConfig("llamacpp", num_gpu_blocks=8, max_num_seqs=1, max_model_len=100)).add(
            Request("r7", 0.0, prompt, output)
        )


def test_the_largest_request_that_fits_runs_to_its_end() -> None:
    scheduler = VllmScheduler(CONFIG)
    request = Request("r7", 0.0, 60, 5)
    scheduler.add(request)
    steps = 0
    while scheduler.unfinished():
        scheduler.complete(scheduler.schedule())
        steps += 1
    assert (steps, request.generated_tokens, request.preemptions) == (5, 5, 0)
    assert scheduler.free_blocks == 4


@pytest.mark.parametrize(
    "limits",
    [
        {"block_size": 0},
        {"num_gpu_blocks": 1},
        {"policy": "lifo"},
        {"watermark": 1.0},
        {"max_num_seqs": 9000},
        {"enable_chunked_prefill": False},
        {"long_prefill_token_threshold": -1},
        {"long_prefill_token_threshold": 1 << 30},
    ],
)
def test_absurd_limits_are_refused(limits: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=next(iter(limits)) if "enable" not in str(limits) else "chunked prefill"):
        EngineConfig(**limits)  # type: ignore[arg-type]
