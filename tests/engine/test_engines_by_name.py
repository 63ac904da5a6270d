"""Presets and users' own classes are found by name; anything else is refused with what is wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sim.engine.config import EngineConfig
from sim.engine.interface import Request
from sim.engine.registry import ENGINES, make_scheduler
from sim.engine.schedulers import VllmScheduler
from sim.errors import UsageError


class LastComeFirst(VllmScheduler):
    """A user's scheduler: new requests jump the queue."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(replace(config, policy="priority"))

    def add(self, request: Request) -> None:
        request.priority = -self.waiting()
        super().add(request)


@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in sorted(ENGINES)), ("vllm", {"async_scheduling": True})])
def test_every_preset_serves_requests_to_the_end(name: str, options: dict[str, bool]) -> None:
    scheduler = make_scheduler(EngineConfig(scheduler=name, options=options, max_num_seqs=3, max_num_batched_tokens=64, max_model_len=512))
    requests = [Request(str(i), 0.0, 40 + 30 * i, 5 + i) for i in range(8)]
    for request in requests:
        scheduler.add(request)
    steps = 0
    while scheduler.unfinished():
        iteration = scheduler.schedule()
        assert sum(tokens for _, tokens in iteration.scheduled) == iteration.total_tokens
        scheduler.complete(iteration)
        steps += 1
        assert steps < 1000
    assert [request.generated_tokens for request in requests] == [5 + i for i in range(8)]
    assert (scheduler.waiting(), scheduler.kv_blocks_used()) == (0, 0)


def test_a_class_of_the_users_own_is_found_by_its_path() -> None:
    scheduler = make_scheduler(EngineConfig(scheduler=f"{__name__}.LastComeFirst", max_num_seqs=1))
    for name in "abc":
        scheduler.add(Request(name, 0.0, 10, 1))
    first = scheduler.schedule().scheduled[0][0]
    assert first.request_id == "c"


def test_a_class_derived_from_vllms_decides_as_vllm_does() -> None:
    scheduler = make_scheduler(EngineConfig(scheduler=f"{__name__}.LastComeFirst"))
    scheduler.add(Request("a", 0.0, 10, 5))
    scheduler.complete(scheduler.schedule())
    scheduler.add(Request("b", 0.0, 20, 5))
    assert sorted(tokens for _, tokens in scheduler.schedule().scheduled) == [1, 20]  # SGLang would hold the decode back


@pytest.mark.parametrize(
    ("name", "limits", "reason"),
    [
        ("sglang", {"policy": "priority"}, "scheduling policy"),
        ("sglang", {"watermark": 0.1}, "watermark"),
        ("llamacpp", {"long_prefill_token_threshold": 64}, "threshold"),
        ("llamacpp", {"enable_chunked_prefill": False, "max_num_batched_tokens": 512}, "always"),
    ],
)
def test_limits_that_a_preset_does_not_know_are_refused(name: str, limits: dict[str, object], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        make_scheduler(EngineConfig(scheduler=name, max_model_len=512, **limits))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("vlm", "known: vllm"),
        ("no.such.module", "cannot be made"),
        ("builtins.int", "cannot be made"),
        ("types.MappingProxyType", "cannot"),
    ],
)
def test_unknown_engines_are_refused(name: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        make_scheduler(EngineConfig(scheduler=name))


@pytest.mark.parametrize(
    ("options", "reason"), [({"n_ubatches": 3}, "n_ubatches"), ({"n_ubatch": 0}, "n_ubatch"), ({"max_defer": -1}, "max_defer")]
)
def test_unknown_options_are_refused(options: dict[str, int], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        make_scheduler(EngineConfig(scheduler="llamacpp", options=options))
