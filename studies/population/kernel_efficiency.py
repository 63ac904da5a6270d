"""Kernel efficiencies from latency tables: the share of the datasheet's peak that a good kernel reaches.

Each estimate is the line latency = launch + work / rate over calls large enough to be bound by that work, with its spread over shapes.
Bandwidth and flops of GEMMs are those of the fastest GEMM, which GEMM surfaces are measured by (`studies.kernel_tables.gemm_fit`).

    python -m studies.population.kernel_efficiency DIR     writes EFFICIENCIES from tables (`studies.kernel_tables.latency_tables`)

The tables are not part of this project; the file of what they show is, so that the population can be rebuilt without them.
"""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sim.cost.all_reduce import wire_bytes
from sim.cost.gemm import gemms_on, roofline
from sim.cost.mlp_work import expected_experts
from sim.errors import UsageError
from sim.files import package_path, write_text
from sim.rates.priors import gpu_link
from sim.specs.gpu import GpuSpec
from sim.specs.gpus import get_gpu
from sim.specs.precision import ACTIVATION_BYTES, STATE_BYTES
from studies.kernel_tables.gemm_fit import surfaces
from studies.kernel_tables.latency_tables import Table, read_tables
from studies.program import program

Array = NDArray[np.float64]
EFFICIENCIES = package_path("scenarios", "data", "reference", "kernel_efficiency.csv")
COLUMNS = ("gpu", "rate", "log_share", "error", "calls", "peak_per_s")
LEAST_CALLS = 8
RUN_ERROR = 0.03  # log sd: a table is one run on one machine


@dataclass(frozen=True, slots=True)
class Estimate:
    """One GPU's log rate and its standard error: a share of the datasheet's peak where that bounds the rate, else its value."""

    gpu: str
    rate: str
    log_value: float
    error: float
    calls: int


@dataclass(frozen=True, slots=True)
class Efficiency:
    """What the tables show of one rate: its share of the peak that the datasheet gave when they were read."""

    share: Estimate
    peak: float


@dataclass(frozen=True, slots=True)
class _Operation:
    """A rate in a table: its name, the work of its calls (bytes or flops; 0 leaves a call out), and the datasheet's peak."""

    rate: str
    table: str
    work: Callable[[Table], Array]
    peak: Callable[[GpuSpec], float]


def _plain_attention(t: Table) -> Array:
    """1 for rows of grouped heads of 128 elements in 16 bits, without a window; 0 for others."""
    group = t.number("num_heads") / t.number("num_key_value_heads")
    sixteen = t.text("kv_cache_dtype", "bfloat16") == "bfloat16"
    return np.where(sixteen & (t.number("window_size", 0.0) == 0) & (t.number("head_dim") == 128) & (group >= 4) & (group <= 8), 1.0, 0.0)


def _kv_bytes(t: Table) -> Array:
    context = t.number("batch_size") * (t.number("step") + 1.0)
    kv = 2.0 * ACTIVATION_BYTES * context * t.number("num_key_value_heads") * t.number("head_dim")
    return np.where(kv > 2e8, kv, 0.0) * _plain_attention(t)


def _attention_flops(t: Table) -> Array:
    length = t.number("isl")
    flops = 2.0 * t.number("batch_size") * t.number("num_heads") * t.number("head_dim") * length**2
    return np.where(length >= 4096, flops, 0.0) * _plain_attention(t)


def _all_reduce_bytes(t: Table) -> Array:
    sizes = zip(t.number("num_gpus"), ACTIVATION_BYTES * t.number("message_size"), strict=True)
    moved = np.array([wire_bytes(float(size), int(gpus), t.gpu) for gpus, size in sizes])
    kept = (t.text("backend") == "vllm_graph") & (moved > 1e6) & (moved < 2e8)
    if not t.gpu.gpu_link_bandwidth:  # more than two cards share root complexes
        kept &= t.number("num_gpus") == 2
    return np.where(kept, moved, 0.0)


def _experts(t: Table) -> tuple[Array, Array, NDArray[np.bool_]]:
    """(weights of an expert, rows of all experts, whether a row is in 16 bits and on whole experts)."""
    one = 3.0 * t.number("hidden_size") * t.number("inter_size") / t.number("moe_tp_size")
    kept = (t.text("moe_dtype") == "bfloat16") & (t.number("moe_ep_size") == 1) & (t.number("moe_tp_size") <= 2)
    return one, t.number("num_tokens") * t.number("topk"), kept


def _expert_bytes(t: Table) -> Array:
    one, _, kept = _experts(t)
    tokens = t.number("num_tokens")
    read = ACTIVATION_BYTES * one * expected_experts(t.number("num_experts"), t.number("topk"), tokens)
    return np.where(kept & (tokens == 1) & (read > 1e8), read, 0.0)  # one token chooses as many experts under every distribution


def _expert_flops(t: Table) -> Array:
    one, rows, kept = _experts(t)
    return np.where(kept & (rows >= 512 * t.number("num_experts")), 2.0 * rows * one, 0.0)


def _state_bytes(t: Table) -> Array:
    state = t.number("batch_size") * t.number("num_v_heads") * t.number("head_k_dim") * t.number("head_v_dim")
    moved = 2.0 * STATE_BYTES * state
    recurrent = np.char.startswith(t.text("kernel_source"), "fused_recurrent") & (t.text("phase") == "generation")
    return np.where(recurrent & (moved > 2e8), moved, 0.0)


OPERATIONS = (
    _Operation("beta_expert", "moe_perf", _expert_bytes, lambda g: g.memory_bandwidth),
    _Operation("beta_kv", "generation_attention_perf", _kv_bytes, lambda g: g.memory_bandwidth),
    _Operation("beta_state", "gdn_perf", _state_bytes, lambda g: g.memory_bandwidth),
    _Operation("expert_flops_per_s", "moe_perf", _expert_flops, lambda g: g.flops["bf16"]),
    _Operation("attention_flops_per_s", "context_attention_perf", _attention_flops, lambda g: g.flops["bf16"]),
    _Operation("comm_bytes_per_s", "custom_allreduce_perf", _all_reduce_bytes, gpu_link),
)
GEMM_PEAKS: dict[str, Callable[[GpuSpec], float]] = {"beta": lambda g: g.memory_bandwidth, "linear_flops_per_s": lambda g: g.flops["bf16"]}
PEAKS = GEMM_PEAKS | {operation.rate: operation.peak for operation in OPERATIONS}
BY_KERNELS = tuple(PEAKS)
TABLES = ("gemm_perf", *dict.fromkeys(operation.table for operation in OPERATIONS))


def efficiencies(tables: Sequence[Table]) -> list[Efficiency]:
    """What tables show of every (GPU, rate); a rate that fewer than LEAST_CALLS calls show is left out."""
    found = [each for table in tables if table.name == "gemm_perf" for each in _of_gemm(table)]
    for operation in OPERATIONS:
        per_table = (_estimate(operation, table) for table in tables if table.name == operation.table)
        found += [each for each in per_table if each is not None]
    return found


def estimates(known: Sequence[Efficiency], left_out: str = "") -> list[Estimate]:
    """Estimates of every (GPU, rate) at the peaks of today's catalogue. Of a GPU whose GEMMs are measured here, bandwidth and flops are
    theirs; `left_out` is one whose own count for nothing.
    """
    found = []
    for each in known:
        share, gpu = each.share, get_gpu(each.share.gpu)
        own = gemms_on(gpu) if share.rate in GEMM_PEAKS and gpu.name != left_out else None
        if own is not None:
            best = roofline(own)
            per_s = best.bytes_per_s if share.rate == "beta" else best.flops_per_s
            found.append(replace(share, log_value=float(np.log(per_s / PEAKS[share.rate](gpu)))))
        else:
            found.append(replace(share, log_value=share.log_value + float(np.log(each.peak / PEAKS[share.rate](gpu)))))
    return found


def read_efficiencies(path: Path = EFFICIENCIES) -> list[Efficiency]:
    """The file that `written` makes. UsageError where a line is none of it."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    try:
        return [
            Efficiency(
                Estimate(row["gpu"], row["rate"], float(row["log_share"]), float(row["error"]), int(row["calls"])), float(row["peak_per_s"])
            )
            for row in rows
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{path}: needs columns {', '.join(COLUMNS)} ({error})") from None


def written(found: Sequence[Efficiency]) -> str:
    """As CSV, every digit kept."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for each in found:
        of = each.share
        writer.writerow((of.gpu, of.rate, repr(of.log_value), repr(of.error), of.calls, repr(each.peak)))
    return text.getvalue()


def _of_gemm(table: Table) -> list[Efficiency]:
    """Bandwidth and flops of the roofline that the GPU's GEMM efficiency is over."""
    gpu, best = table.gpu, surfaces(table)[table.gpu.name, "bf16"]
    reached = {"beta": best.bytes_per_s, "linear_flops_per_s": best.flops_per_s}
    peaks = {rate: float(GEMM_PEAKS[rate](gpu)) for rate in reached}
    return [
        Efficiency(Estimate(gpu.name, rate, float(np.log(per_s / peaks[rate])), RUN_ERROR, len(table)), peaks[rate])
        for rate, per_s in reached.items()
    ]


def _estimate(operation: _Operation, table: Table) -> Efficiency | None:
    work, seconds = operation.work(table), table.number("latency") / 1e3
    bound, shortest = work > 0, float(seconds.min())
    work, seconds = work[bound], seconds[bound]
    if work.size < LEAST_CALLS:
        return None
    # relative errors: weigh each call by 1/t, so that a large one does not decide alone; launching takes from nothing to the shortest call
    design = np.stack([1 / seconds, work / seconds], axis=1)
    launch, per_unit = np.linalg.lstsq(design, np.ones(work.size), rcond=None)[0]
    if not 0.0 <= launch <= shortest:
        launch = float(np.clip(launch, 0.0, shortest))
        per_unit = float(np.median((seconds - launch) / work))
    peak = float(operation.peak(table.gpu))
    shares = np.log(work / np.maximum(seconds - launch, 0.2 * seconds) / peak)
    centre = float(-np.log(per_unit * peak))
    sd = float(1.4826 * np.median(np.abs(shares - np.median(shares))))
    return Efficiency(Estimate(table.gpu.name, operation.rate, centre, max(sd, RUN_ERROR), int(work.size)), peak)


@program("studies.population.kernel_efficiency", "DIR")
def main(argv: Sequence[str]) -> int:
    """Read tables, write what they show. Returns the exit code."""
    found = efficiencies(read_tables(Path(argv[0]), names=TABLES))
    write_text(EFFICIENCIES, written(found))
    print(f"wrote {EFFICIENCIES}: {len(found)} rates of {len({each.share.gpu for each in found})} GPUs")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
