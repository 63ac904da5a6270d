"""Rates: how fast one (GPU, engine, dtype) settles a bill. The unknowns that calibration learns; floats, arrays or tensors."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

UNITS: dict[str, str] = {
    "c0_s": "s per iteration",
    "c_seq_s": "s per sequence",
    "c_prefill_s": "s per iteration that carries prefill",
    "eager_layer_s": "s per layer of an iteration launched outside a captured graph (host time, overlaps the GPU's)",
    "eager_expert_layer_s": "s more per mixture-of-experts layer of such an iteration",
    "beta": "bytes/s, weights",
    "beta_expert": "bytes/s, routed experts' weights",
    "beta_kv": "bytes/s, KV cache",
    "beta_state": "bytes/s, recurrent state",
    "linear_flops_per_s": "flop/s, matrix products",
    "attention_flops_per_s": "flop/s, attention",
    "chunk_pad_tokens": "query tokens by which a prefill chunk's attention is padded",
    "smooth_p": "exponent of the smooth maximum",
    "find_s": "s per layer that selects",
    "find_unit_s": "s per layer and selected unit",
    "link_bytes_per_s": "bytes/s, host link",
    "link_latency_s": "s per layer that crosses the host link",
    "gather_s": "s per layer whose selected KV is gathered from host RAM",
    "comm_bytes_per_s": "bytes/s, GPU-GPU link",
    "comm_latency_s": "s per all-reduce",
    "expert_layer_s": "s per mixture-of-experts layer",
    "expert_flops_per_s": "flop/s, routed experts",
    "doubling_s": "s per layer and doubling of an iteration's sequences",
    "decode_idle": "share of the idle while the last pieces of decodes' KV are read that shows",
    "last_turn": "share of the idle in the turns of a chunk's attention blocks that shows",
    "intake_s": "s per prompt token of a request taken in",
    "spread_layer_s": "s per layer outside a full graph over several GPUs (host time, overlaps the GPU's)",
    "spread_eager_layer_s": "s more per such layer launched outside any captured graph",
    "spread_intake_s": "s more per prompt token of a request taken in over several GPUs",
    "runner2_intake_s": "s more per prompt token of a request taken in by vLLM's second model runner",
    "runner2_prefill": "share by which that runner takes longer over an iteration that carries prefill",
    "tile_share": "share of the rows that a matrix product's last tile lacks that shows",
    "choice_share": "share of what matrix products take beyond a smooth maximum, each by itself, that shows",
    "expert_io_bytes_per_s": "bytes/s, what rows of routed experts pass through memory between kernels",
}


@dataclass(frozen=True, slots=True)
class Rates:
    """One value (or one array of draws) for each unknown of the formula; see UNITS."""

    c0_s: Any
    c_seq_s: Any
    c_prefill_s: Any
    eager_layer_s: Any
    eager_expert_layer_s: Any
    beta: Any
    beta_expert: Any
    beta_kv: Any
    beta_state: Any
    linear_flops_per_s: Any
    attention_flops_per_s: Any
    chunk_pad_tokens: Any
    smooth_p: Any
    find_s: Any
    find_unit_s: Any
    link_bytes_per_s: Any
    link_latency_s: Any
    gather_s: Any
    comm_bytes_per_s: Any
    comm_latency_s: Any
    expert_layer_s: Any
    expert_flops_per_s: Any
    doubling_s: Any
    decode_idle: Any
    last_turn: Any
    intake_s: Any
    spread_layer_s: Any
    spread_eager_layer_s: Any
    spread_intake_s: Any
    runner2_intake_s: Any
    runner2_prefill: Any
    tile_share: Any
    choice_share: Any
    expert_io_bytes_per_s: Any

    def names(self) -> tuple[str, ...]:
        return tuple(f.name for f in fields(self))

    def at(self, draw: int) -> Rates:
        """The rates of one draw, as plain floats."""
        return replace(self, **{name: float(getattr(self, name)[draw]) for name in self.names()})


# What the host does: another start of an engine, on another machine, does all of it slower or faster.
OF_HOST = (
    "c0_s", "c_seq_s", "c_prefill_s", "eager_layer_s", "eager_expert_layer_s", "expert_layer_s", "doubling_s", "intake_s",
    "runner2_intake_s",
)  # fmt: skip


def at_host(rates: Rates, factor: Any) -> Rates:
    """The rates on a host that takes `factor` times as long (float, or an array that broadcasts with them)."""
    return replace(rates, **{name: getattr(rates, name) * factor for name in OF_HOST})


@dataclass(frozen=True, slots=True)
class RateDraws:
    """Posterior or prior draws of the rates: `point` (the medians, floats), `draws` (arrays of shape [draws]), and where each came from."""

    point: Rates
    draws: Rates
    basis: dict[str, str]  # rate name -> where its value comes from
    summary: str  # one line: posterior or prior, on what
    # [draw] what the formula misses of an iteration, as a factor that is already in the draws' times: prices over it are the rates alone
    error: Any = None
    host: Any = None  # [draw] how much longer than the middle one the draw's host takes for what hosts do, already in its rates
    host_request_s: float | None = None  # the API server's time per request, where the rates were learnt together with it

    def at_middle_host(self) -> RateDraws:
        """The draws without what hosts differ by, for those who are about to learn of a host."""
        return self if self.host is None else replace(self, draws=at_host(self.draws, 1.0 / self.host), host=None)

    @property
    def count(self) -> int:
        return len(self.draws.beta)
