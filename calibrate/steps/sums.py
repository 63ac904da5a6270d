"""Pairs of rates that cells show well as a sum and each badly: the score of one, counted from where the sum comes out as expected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from calibrate.steps.cells import StepCells
from calibrate.steps.rates import value
from sim.priors import Prior

# Of what the two take together: how soon what one leaves to the other is kept above zero.
LATE_FLOOR, IO_FLOOR = 0.3, 0.1


@dataclass(frozen=True)
class Late:
    """Taking a prompt in, from where it and the padding of a chunk late in a long prompt take together as long as expected."""

    NEEDS = ("chunk_pad_tokens", "intake_s", "attention_flops_per_s")

    together_s: float
    pad_s: float  # by the padded token
    tokens: float
    name = "intake_s"

    @classmethod
    def of(cls, cells: StepCells, expected: Mapping[str, float]) -> Late:
        """Of the cell that takes most in, given the rates expected."""
        bill = cells.as_bill()
        i = int(np.argmax(bill.intake_tokens - bill.spread_intake_tokens - bill.runner2_intake_tokens))
        pad, each, flops = (expected[name] for name in cls.NEEDS)
        pad_s, tokens = float(bill.chunk_flops[i]) / flops, max(float(bill.intake_tokens[i]), 1.0)
        return cls(pad * pad_s + each * tokens, pad_s, tokens)

    def score(self, z: Mapping[str, Any], hosts: Any, priors: Mapping[str, Prior], xp: Any) -> Any:
        pad = value(priors["chunk_pad_tokens"], z["chunk_pad_tokens"], xp.exp)
        left = floored(self.together_s - pad * self.pad_s, LATE_FLOOR * self.together_s, xp)
        return score_of(xp.log(left / self.tokens), priors[self.name])


@dataclass(frozen=True)
class Io:
    """What routed rows pass through memory, from where that and the products of their experts take together as long as expected."""

    NEEDS = ("expert_flops_per_s", "expert_io_bytes_per_s")

    together_s: float
    flops: float
    io_bytes: float
    name = "expert_io_bytes_per_s"

    @classmethod
    def of(cls, cells: StepCells, expected: Mapping[str, float]) -> Io:
        """Of the cell that passes most, given the rates expected."""
        bill = cells.as_bill()
        i = int(np.argmax(bill.expert_io_bytes))
        flops, passed = float(bill.expert_flops[i]), float(bill.expert_io_bytes[i])
        by_flops, by_bytes = (expected[name] for name in cls.NEEDS)
        return cls(flops / by_flops + passed / by_bytes, flops, passed)

    def score(self, z: Mapping[str, Any], hosts: Any, priors: Mapping[str, Prior], xp: Any) -> Any:
        prior, floor = priors[self.name], IO_FLOOR * self.together_s
        products = self.flops / value(priors["expert_flops_per_s"], z["expert_flops_per_s"], xp.exp)
        # bytes take some time at the datasheet's peak; what is left beyond it says how far below the peak the rate is
        beyond = floored(self.together_s - products - self.io_bytes / prior.upper, floor, xp)
        below = 1 - prior.median / prior.upper
        return below * (xp.log(below * self.io_bytes / beyond) - np.log(prior.median)) / prior.sigma


def score_of(logarithm: Any, prior: Prior) -> Any:
    """The standard score at which a rate without a peak has this logarithm."""
    return (logarithm - np.log(prior.median)) / prior.sigma


def floored(left: Any, floor: Any, xp: Any) -> Any:
    """What is left, smoothly kept above zero."""
    return 0.5 * (left + xp.sqrt(left**2 + floor**2))
