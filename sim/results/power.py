"""Power that GPUs draw in a run: idle, and by what the run moves through memory, computes, and keeps their kernels busy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sim.cost.batch import BatchShape
from sim.cost.coefficients import coefficients
from sim.cost.work import work_from
from sim.results.record import RunRecord
from sim.specs.gpu import GpuSpec
from sim.specs.model import ModelSpec
from sim.specs.parallel import NO_PARALLEL, Parallel
from sim.specs.precision import Precision, arithmetic

# Shares of a card's power limit, by `python -m studies.power`: 84 loads served on H100s and H200s, whose draw was read.
# Draws of 68 loads of other models, precisions and ways to serve were then 9 % off in the median.
IDLE, MEMORY, COMPUTE, KERNELS, MOST = 0.114, 0.53, 1.09, 0.156, 0.985
LOG_SD = 0.15  # of those, with their bias
NINETY = 1.645
ON_GPU = ("linear layers", "attention", "small kernels", "all-reduce", "recurrent state")  # terms of the step time with kernels running


@dataclass(frozen=True, slots=True)
class PoweredServer:
    """One replica of a run: `gpus` cards that compute every iteration together."""

    model: ModelSpec
    precision: Precision
    gpu: GpuSpec
    tp: int = 1
    parallel: Parallel = NO_PARALLEL

    @property
    def gpus(self) -> int:
        return self.tp * self.parallel.parts


@dataclass(frozen=True, slots=True)
class Power:
    """Mean power of all GPUs of a run that are up (W), its 90 % interval, and energy per output token (J)."""

    watts: float
    low: float
    high: float
    per_token_j: float


def power_of(record: RunRecord, replicas: Sequence[PoweredServer]) -> Power | None:
    """The power of a run whose replica i is `replicas[i]`; None where its iterations were not kept or a card's limit is not known."""
    if not len(record.terms) or any(server.gpu.power_w is None for server in replicas):
        return None
    of = np.asarray(record.iterations["iteration_replica"])
    energy_j = up_s = limit_j = 0.0
    for place, (server, paid_s) in enumerate(zip(replicas, record.paid_s, strict=True)):
        if paid_s > 0:
            energy_j += paid_s * server.gpus * watts(utilisation(record, of == place, server, paid_s), server.gpu)
            limit_j += paid_s * server.gpus * float(server.gpu.power_w or 0.0) * MOST
            up_s = max(up_s, paid_s)
    tokens = float(np.sum(record.requests["generated_tokens"]))
    if not up_s or not tokens:
        return None
    mean = energy_j / up_s
    high = min(mean * math.exp(NINETY * LOG_SD), limit_j / up_s)
    return Power(mean, mean * math.exp(-NINETY * LOG_SD), high, energy_j / tokens)


def power_words(power: Power) -> str:
    """A power in words: 2.9 kW (2.3-3.6), 1.2 J per output token."""
    mean, low, high = (f"{watts / 1e3:.3g}" for watts in (power.watts, power.low, power.high))
    return f"Its GPUs draw {mean} kW in the mean ({low}-{high}), {power.per_token_j:.3g} J per output token"


def utilisation(record: RunRecord, ran: np.ndarray, server: PoweredServer, up_s: float) -> tuple[float, float, float]:
    """Shares of the datasheet's memory bandwidth and of its flop rate that a replica reaches over `up_s`, and of that time in which its
    kernels run; of one GPU. Reads of KV count as far as the step time has them; attention's flops are left out, as kernels count.
    """
    log = record.iterations
    tokens, prefill, sampled = (np.asarray(log[name])[ran] for name in ("tokens", "prefill_tokens", "sampled"))
    shape = BatchShape(decode_seqs=tokens - prefill, prefill_tokens=prefill, prefill_seqs=(prefill > 0) * 1.0, sampled=sampled)
    work = work_from(coefficients(server.model, server.precision, server.tp, server.gpu, server.parallel), shape)

    def total(*parts: np.ndarray) -> float:
        return float(sum(np.sum(np.broadcast_to(part, tokens.shape)) for part in parts))

    kv = float(np.sum(np.asarray(log["decode_kv_s"])[ran])) * server.gpu.memory_bandwidth
    moved = total(work.linear_bytes, work.head_bytes, work.expert_bytes) + kv
    computed = total(work.linear_flops, work.head_flops, work.expert_flops)
    peak = server.gpu.flops[arithmetic(server.precision.weights, server.gpu)]
    on_gpu = [i for i, name in enumerate(record.term_names) if name in ON_GPU]
    stages = up_s * server.parallel.pp
    return (
        moved / server.gpu.memory_bandwidth / stages,
        computed / peak / stages,
        float(np.sum((record.terms if ran.all() else record.terms[ran]).sum(axis=0)[on_gpu])) / stages,
    )


def watts(used: tuple[float, float, float], gpu: GpuSpec) -> float:
    """Mean power of one GPU (W) from its utilisation; never above its limit."""
    assert gpu.power_w is not None
    memory, compute, kernels = used
    return gpu.power_w * min(IDLE + MEMORY * memory + COMPUTE * compute + KERNELS * kernels, MOST)
