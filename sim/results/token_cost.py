"""Cost of a million tokens by kind: input that was computed, input read from the prefix cache, and output.

A replica's bill is split as its busy time is (sim.results.iteration_shares): cached tokens cost the attention that reads their KV, output
its decodes, input all other prefill. Idle time costs each in proportion; a replica that computed nothing is split as all others are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sim.results.iteration_shares import shares
from sim.results.record import RunRecord

KINDS = ("input", "cached", "output")


@dataclass(frozen=True, slots=True)
class TokenCost:
    """USD per million tokens, in the order of KINDS, and how many tokens there were; each times its tokens sums to the bill."""

    usd_per_mtok: tuple[float, ...]
    tokens: tuple[int, ...]

    @property
    def usd(self) -> float:
        """The bill."""
        return float(np.dot(self.usd_per_mtok, self.tokens)) / 1e6

    def at(self, usd_per_mtok: float) -> TokenCost:
        """The same, of a bill of `usd_per_mtok` per million output tokens."""
        times = 1e-6 * usd_per_mtok * self.tokens[-1] / self.usd
        return replace(self, usd_per_mtok=tuple(times * each for each in self.usd_per_mtok))

    def to_dict(self) -> dict[str, float]:
        """By kind; kinds of which there were no tokens are left out."""
        return {kind: each for kind, each, count in zip(KINDS, self.usd_per_mtok, self.tokens, strict=True) if count}

    def text(self) -> str:
        """In words: 0.0412 USD of input, 0.61 of output."""
        first, *rest = [(kind, f"{each:.3g}") for kind, each in self.to_dict().items()]
        return f"A million tokens cost {first[1]} USD of {first[0]}" + "".join(f", {each} of {kind}" for kind, each in rest)


def token_cost(record: RunRecord, usd_per_hour: Sequence[float | None]) -> TokenCost | None:
    """The cost of a run whose replica i costs `usd_per_hour[i]`; None without an iteration log, a price, or output."""
    served = {name: np.asarray(record.requests[name], dtype=np.int64) for name in ("prompt_tokens", "cached_tokens", "generated_tokens")}
    prompts, cached, output = (int(each[served["generated_tokens"] > 0].sum()) for each in served.values())
    if not len(record.terms) or None in usd_per_hour or not output:
        return None
    found = shares(record, np.arange(len(record.terms)), -1)
    prefill, decode = found.whose[:, :2].sum(axis=1), found.whose[:, 2:].sum(axis=1)
    of = np.asarray(record.iterations["iteration_replica"], dtype=np.int64)
    busy_s = np.stack([np.bincount(of, part, len(usd_per_hour)) for part in (prefill - found.cached, found.cached, decode)])
    bills = np.array(usd_per_hour, dtype=float) * np.array(record.paid_s) / 3600.0
    whole = busy_s.sum(axis=0)
    split = np.where(whole > 0, busy_s / np.where(whole > 0, whole, 1.0), (busy_s.sum(axis=1) / busy_s.sum())[:, None])
    tokens = (prompts - cached, cached, output)
    return TokenCost(tuple(float(usd) * 1e6 / max(count, 1) for usd, count in zip(split @ bills, tokens, strict=True)), tokens)
