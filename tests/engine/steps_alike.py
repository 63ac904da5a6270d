"""How decisions of ours are set against an engine's own: over how many workloads, and that no iteration differs."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings


def over_workloads(number: int) -> settings:
    """The same `number` of workloads in every run."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=number, database=None, derandomize=True, suppress_health_check=slow)


def assert_steps_alike(ours: list[Any], theirs: list[Any]) -> None:
    """Fail at the first iteration decided otherwise, and where one of them goes on longer."""
    for number, (our_step, their_step) in enumerate(zip(ours, theirs, strict=False)):
        assert our_step == their_step, f"iteration {number} of {len(theirs)}: {our_step} here, {their_step} there"
    assert len(ours) == len(theirs), f"{len(ours)} iterations here, {len(theirs)} there"
