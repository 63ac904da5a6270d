"""Versions of vLLM's scheduler: one entry of VLLM_RULES each, the newest first.

Each entry is compared with that version's own classes by tests/engine/test_decisions_equal_vllm.py. Without drafts, priorities and a
prefill interval all of them decide alike.
"""

from __future__ import annotations

from dataclasses import dataclass

from sim.errors import UsageError


@dataclass(frozen=True, slots=True)
class VllmRules:
    """`goes_on`: a running request that makes room by leaving itself does not end the turn of those behind it. `remembers_samples`: with
    drafts, full blocks can be found as soon as their tokens are known, not only at the next decision. `hashes_next_token`: where a drafter
    reads the token after a block, that token is part of the block's name, and the last block of a hit is kept; else it is computed again.
    `prefill_interval`: prefill can be held back for some iterations (`prefill_schedule_interval`). `counts_running`: of LoRA adapters
    (`max_loras`) those of all running requests count, and not of those alone that an iteration computes.
    """

    goes_on: bool
    remembers_samples: bool
    hashes_next_token: bool
    prefill_interval: bool
    counts_running: bool


VLLM_RULES = {
    "0.33": VllmRules(goes_on=True, remembers_samples=True, hashes_next_token=True, prefill_interval=True, counts_running=True),
    "0.32": VllmRules(goes_on=False, remembers_samples=False, hashes_next_token=False, prefill_interval=False, counts_running=False),
}
NEWEST = next(iter(VLLM_RULES))


def rules_of(version: str) -> VllmRules:
    """The rules of "0.33" or "0.33.1"; of a version before the oldest here, that one's. Raises UsageError for what is no version, or a
    newer one.
    """
    parts = version.split(".")
    if len(parts) < 2 or not all(part.isdecimal() for part in parts[:2]):
        raise UsageError(f"engine_version must be like {NEWEST!r}, got {version!r}")
    requested = (int(parts[0]), int(parts[1]))
    for known, rules in VLLM_RULES.items():
        major, minor = known.split(".")
        if requested >= (int(major), int(minor)):
            if known == NEWEST and requested > (int(major), int(minor)):
                raise UsageError(f"engine_version {version} is newer than {NEWEST}, the newest that is known")
            return rules
    return rules


def known_version(version: str) -> str | None:
    """The version where its rules are known; None where it is newer than the newest here, or no version."""
    try:
        rules_of(version)
    except UsageError:
        return None
    return version
