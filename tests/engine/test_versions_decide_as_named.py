"""An engine version chooses whose decisions are taken; what a version does not have, and what is no version, is refused."""

from __future__ import annotations

import pytest

from sim.engine.config import EngineConfig
from sim.engine.interface import Request
from sim.engine.registry import make_scheduler
from sim.engine.schedulers import VllmScheduler
from sim.engine.versions import NEWEST, VLLM_RULES, rules_of
from sim.errors import UsageError


def test_the_newest_is_the_default() -> None:
    assert EngineConfig().engine_version == NEWEST
    assert rules_of("0.33.1") is VLLM_RULES["0.33"]
    assert rules_of("0.23.0") is VLLM_RULES["0.32"]


@pytest.mark.parametrize(
    ("version", "word"), [("newest", "must be like"), ("0.", "must be like"), ("0.34", "newer than 0.33"), ("1.0", "newer")]
)
def test_what_is_no_known_version_is_refused(version: str, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        make_scheduler(EngineConfig(engine_version=version))


def test_an_interval_needs_a_version_that_has_one() -> None:
    with pytest.raises(UsageError, match=r"0\.32 has no prefill_schedule_interval"):
        EngineConfig(engine_version="0.32", prefill_schedule_interval=2)
    with pytest.raises(UsageError, match="sglang has no choice of version"):
        make_scheduler(EngineConfig(scheduler="sglang", engine_version="0.32"))


def prefill_tokens(interval: int) -> list[int]:
    """Prefill of each iteration while one request decodes and prompts of 8 tokens come one after another."""
    scheduler = VllmScheduler(EngineConfig(num_gpu_blocks=100, max_num_seqs=8, prefill_schedule_interval=interval))
    scheduler.add(Request("decodes", 0.0, 8, 50))
    found = []
    for number in range(12):
        iteration = scheduler.schedule()
        found.append(sum(tokens for request, tokens in iteration.scheduled if request.computed_tokens < request.prompt_tokens))
        scheduler.complete(iteration)
        scheduler.add(Request(str(number), 1.0 + number, 8, 1))
    return found


def test_prefill_waits_for_its_interval() -> None:
    assert prefill_tokens(1) == [8] * 12
    assert prefill_tokens(4) == [8, 0, 0, 0, 32, 0, 0, 0, 32, 0, 0, 0]


def test_the_option_reaches_the_engine() -> None:
    from sim.study.deployment import Deployment, plan_engine

    deployment = Deployment.of("Llama-3.1-8B", "H100", engine_version="0.32")
    assert plan_engine(deployment)[0].engine_version == "0.32"
