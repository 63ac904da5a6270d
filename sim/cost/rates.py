"""Rates: how fast one (GPU, engine, dtype) does its work. The unknowns that calibration learns; floats, arrays or tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from sim.cost.provenance import GIVEN, Provenance
from sim.shown import Figures, Shown
from sim.specs.decode_stack import ENGINE

UNITS: dict[str, str] = {
    "c0_s": "s per iteration (host)",
    "c_seq_s": "s per sequence (host)",
    "c_prefill_s": "s per iteration that carries prefill (host)",
    "launch_layer_s": "s per layer launched kernel by kernel (host time, overlaps the GPU's)",
    "kernel_s": "s per small kernel: norms, rotary, KV write, attention, activation",
    "beta": "bytes/s, weights and activations",
    "beta_expert": "bytes/s, routed experts' weights",
    "beta_kv": "bytes/s, KV cache",
    "beta_state": "bytes/s, recurrent state",
    "linear_flops_per_s": "flop/s, linear layers",
    "expert_flops_per_s": "flop/s, routed experts",
    "attention_flops_per_s": "flop/s, attention",
    "c1_s": "s per layer that selects blocks",
    "c1_unit_s": "s per layer and selected block",
    "link_bytes_per_s": "bytes/s, host link",
    "gather_s": "s per layer whose selected KV is gathered from host RAM",
    "comm_bytes_per_s": "bytes/s, GPU-GPU link",
    "comm_latency_s": "s per all-reduce",
}


@dataclass(frozen=True, slots=True)
class Rates:
    """One value (or one array of draws) for each unknown of the formula; see UNITS."""

    c0_s: Any
    c_seq_s: Any
    c_prefill_s: Any
    launch_layer_s: Any
    kernel_s: Any
    beta: Any
    beta_expert: Any
    beta_kv: Any
    beta_state: Any
    linear_flops_per_s: Any
    expert_flops_per_s: Any
    attention_flops_per_s: Any
    c1_s: Any  # c1(k), the cost of block selection, is c1_s + k c1_unit_s by layer
    c1_unit_s: Any
    link_bytes_per_s: Any
    gather_s: Any
    comm_bytes_per_s: Any
    comm_latency_s: Any

    def names(self) -> tuple[str, ...]:
        return tuple(f.name for f in fields(self))

    def at(self, draw: int) -> Rates:
        """The rates of one draw, as plain floats."""
        return replace(self, **{name: float(getattr(self, name)[draw]) for name in self.names()})


# What the host does: another start of an engine, on another machine, does all of it slower or faster.
OF_HOST = ("c0_s", "c_seq_s", "c_prefill_s", "launch_layer_s")


def at_host(rates: Rates, factor: Any) -> Rates:
    """The rates on a host that takes `factor` times as long (float, or an array that broadcasts with them)."""
    return replace(rates, **{name: getattr(rates, name) * factor for name in OF_HOST})


@dataclass(frozen=True, slots=True, repr=False)
class RateDraws(Shown):
    """Posterior or prior draws of the rates: `point` (the medians, floats), `draws` (arrays of shape [draws]), and where each came from."""

    point: Rates
    draws: Rates
    sources: Mapping[str, Provenance] = field(default_factory=dict)  # by rate
    source: Provenance = GIVEN  # of the whole
    # [draw] what the formula misses of an iteration, as a factor that is already in the draws' times: prices over it are the rates alone
    error: Any = None
    host: Any = None  # [draw] how much longer than the median host the draw's host takes for what hosts do, already in its rates
    host_work: Any = (
        None  # [draw] how much longer than the median host the draw's takes for work that serving hides, and for its API server
    )
    host_request_s: float | None = None  # the API server's time per request, where the rates were learnt together with it
    stack: str = ENGINE  # that the rates are of (sim.specs.decode_stack)

    def shown(self) -> tuple[str, Figures]:
        """Title and figures."""
        return self.summary, [
            ("draws", str(self.count)),
            *((name, f"{getattr(self.point, name):.3g} {unit}") for name, unit in UNITS.items()),
        ]

    @property
    def summary(self) -> str:
        """Source of the rates, in one line."""
        return self.source.text()

    @property
    def basis(self) -> dict[str, str]:
        """Source of each rate, in words."""
        return {name: source.text() for name, source in self.sources.items()}

    def adjusted(self, names: Iterable[str], what: str) -> dict[str, Provenance]:
        """`sources` in which `what` was done to the rates of these names."""
        return {**self.sources, **{name: self.sources.get(name, GIVEN).after(what) for name in names}}

    def at_median_host(self) -> RateDraws:
        """The draws without what hosts differ by, for those who are about to learn of a host."""
        return self if self.host is None else replace(self, draws=at_host(self.draws, 1.0 / self.host), host=None)

    @property
    def count(self) -> int:
        return len(self.draws.beta)
