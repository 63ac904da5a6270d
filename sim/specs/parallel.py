"""Parallelism of one engine beyond tensor parallelism: pipeline stages, data-parallel attention, expert parallelism.

    pipeline   layers in `pp` stages; as many micro-batches are under way, each one a share of the requests
    data       `dp` ranks with attention, KV and requests of their own; routed experts spread over all of them, which step together
    expert     experts whole on the tp x dp GPUs, not cut: the GPU with the most tokens is waited for

A replica has tp x pp x dp GPUs. Its iteration is cut into pp x dp parts, and costs what the heaviest of them costs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from sim.errors import UsageError
from sim.specs.model import ModelSpec


class Link(NamedTuple):
    """Latency and time per byte of a group's link, over those of the slowest link of the replica."""

    latency: float
    byte: float


SLOWEST = Link(1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Parallel:
    """Stages, ranks and how experts are spread; and what each kind of traffic crosses."""

    pp: int = 1
    dp: int = 1
    expert: bool = False
    all_reduce: Link = SLOWEST
    all_to_all: Link = SLOWEST
    hand_over: Link = SLOWEST

    @property
    def parts(self) -> int:
        """Shares of an iteration that are under way together."""
        return self.pp * self.dp

    def stage_share(self, model: ModelSpec) -> float:
        """Share of the layers in the largest stage."""
        return 1.0 if self.pp == 1 else -(-model.layers // self.pp) / model.layers


NO_PARALLEL = Parallel()


def placed(gpu: str, tp: int, parallel: Parallel) -> str:
    """A replica's GPUs in words, and how they share the work where that is not by tensor parallelism alone."""
    ways = [f"{name} {size}" for name, size in (("TP", tp), ("PP", parallel.pp), ("DP", parallel.dp)) if size > 1]
    how = f" ({' x '.join(ways)}{', experts whole' if parallel.expert else ''})" if parallel.parts > 1 or parallel.expert else ""
    return f"{tp * parallel.parts} x {gpu}{how}"


def check_parallel(model: ModelSpec, tp: int, parallel: Parallel) -> None:
    """Raise UsageError, naming the option, for what an engine would not start."""
    p = parallel
    if p.pp < 1 or p.dp < 1:
        name, size = ("pipeline", p.pp) if p.pp < 1 else ("data", p.dp)
        raise UsageError(f"{name}-parallel-size must be at least 1, got {size}")
    if p.pp > model.layers:
        raise UsageError(f"pipeline-parallel-size {p.pp} is more than the {model.layers} layers of {model.name}")
    if not p.expert:
        return
    experts = sorted({group.mlp.experts for group in model.groups if group.mlp.kind == "moe"})
    if not experts:
        raise UsageError(f"enable-expert-parallel: {model.name} has no experts")
    if odd := [count for count in experts if count % (tp * p.dp)]:
        raise UsageError(
            f"enable-expert-parallel: {odd[0]} experts of {model.name} do not split over "
            f"{tp * p.dp} GPUs (tensor-parallel-size {tp} x data-parallel-size {p.dp})"
        )
