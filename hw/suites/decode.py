"""decode: a whole decode step by this project's own fused kernels, over (batch, context): dense, sparse by k, tiered.

Protocol (decode/1). A step is one captured graph, embedding to greedy argmax; a sample is the mean of four replays from the same
context, between device events. The modes of one (batch, context) share weights and cache and are timed in turn. Before and after
the grid the step's logits are compared with a naive float64 step, at several batches: dense, and sparse where the selection covers every
block, so that it must equal dense. In a tiered step all but the sink and newest blocks of the cache lie in pinned host memory.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hw.artifact import table
from hw.engines.shapes import shape
from hw.journal import Journal, attempt
from hw.pace import Budget, paced, summarize
from sim.errors import UsageError

PROTOCOL = "decode/1"
K, M = 2**10, 2**20
FIRST = ((1, 8 * K), (1, 128 * K), (8, 8 * K), (8, 128 * K), (1, M))
REST = ((1, 32 * K), (8, 32 * K), (2, 128 * K), (4, 128 * K), (1, 512 * K), (32, 8 * K), (2, 32 * K), (4, 32 * K), (2, 8 * K),
        (4, 8 * K), (32, 32 * K), (2, 512 * K), (16, 8 * K), (2, M), (16, 128 * K))  # fmt: skip
KEPT = (8, 32, 16)  # selected blocks of 128 tokens, the two published ones first
TIERED_CONTEXT = 128 * K - 256  # cache and headroom together then pin a power of two
GATE_BATCHES, GATE_CONTEXT = (1, 3, 8), 1 * K  # eight blocks: all of them selected at k = 8
GATE_BOUND = 6e-2  # bf16 activations through every layer, against float64
ROUNDS, SAMPLES = 5, 2

COLUMNS = {
    "mode": ("dense, sparse or tiered", ""),
    "status": ("ok, oom or error", ""),
    "error": ("what went wrong", ""),
    "batch": ("sequences", "1"),
    "context_tokens": ("tokens in the cache of each", "tokens"),
    "k_blocks": ("selected blocks per sequence and KV head, 0 where nothing is selected", "1"),
    "block_tokens": ("tokens of a block", "tokens"),
    "step_s_median": ("median step time", "s"),
    "step_s_p25": ("lower quartile", "s"),
    "step_s_p75": ("upper quartile", "s"),
    "step_s_n": ("samples, each the mean of four steps", "1"),
    "weight_bytes": ("weights a step reads", "bytes"),
    "kv_bytes": ("keys and values of the whole cache", "bytes"),
    "keep_bytes": ("keys and values of the selected blocks", "bytes"),
    "scan_bytes": ("block summaries a selecting step reads", "bytes"),
}


OpenStep = Callable[..., Any]  # (batch, context, modes=..., k_blocks=...) -> kernels.model_step.ModelStep


@dataclass(frozen=True, slots=True)
class DecodeCell:
    """Modes timed in turn over one cache."""

    batch: int
    context: int
    modes: tuple[str, ...]
    k_blocks: int

    @property
    def key(self) -> str:
        return f"grid {'+'.join(self.modes)} k{self.k_blocks} {self.batch}x{self.context}"


def grid() -> list[DecodeCell]:
    """All cells, most telling first: the corners with every k, the rest of the plane, the host tier."""
    cells = [DecodeCell(b, c, ("dense", "sparse") if k == 8 else ("sparse",), k) for b, c in FIRST for k in KEPT]
    cells += [DecodeCell(b, c, ("dense", "sparse"), 8) for b, c in REST]
    cells += [DecodeCell(1, TIERED_CONTEXT, ("tiered",), k) for k in KEPT]
    return cells + [DecodeCell(b, c, ("sparse",), k) for b, c in REST for k in KEPT[1:]]


def kernel_shape(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of `kernels.model_shape.Shape` for a config.json. Raises UsageError for what the step cannot run."""
    kind = config["model_type"]
    if kind not in ("qwen2", "qwen3", "llama", "mistral"):
        raise UsageError(f"suite decode runs dense decoders with full attention, not {kind}")
    heads = config["num_attention_heads"]
    return {
        "layers": config["num_hidden_layers"],
        "hidden": config["hidden_size"],
        "heads_q": heads,
        "heads_kv": config["num_key_value_heads"],
        "head_dim": config.get("head_dim", config["hidden_size"] // heads),
        "ffn": config["intermediate_size"],
        "vocab": config["vocab_size"],
        "qkv_bias": kind == "qwen2",
        "qk_norm": kind == "qwen3",
        "tied_embeddings": config["tie_word_embeddings"],
        "rope_theta": config["rope_theta"],
        "eps": config["rms_norm_eps"],
    }


def run(job: Any, journal: Journal, attrs: dict[str, Any]) -> None:
    """Gates and grid. Needs a CUDA device and Triton, no engine."""
    fields = kernel_shape(shape(job.model))
    import torch

    from kernels import model_shape, model_step, reference, reference_model

    def open_step(batch: int, context: int, **how: Any) -> Any:
        gc.collect()  # the step before holds its cache in cycles of graphs
        torch.cuda.empty_cache()
        return model_step.ModelStep(model_shape.Shape(**fields), batch, context, seed=job.seed, **how)

    def gate(step: Any, mode: str) -> float:
        step.reset()
        want = reference_model.advance(step, reference_model.history(step), list(range(step.batch)))
        step.run(mode)
        error = reference.relative_error(step.logits, want)
        step.reset()
        return float(error)

    attrs |= {"engine": "own kernels", "path": "cuda graph replay", "weights": "random"}
    budget = Budget(job.budget_s)
    attrs |= measure(open_step, gate, grid(), journal, budget, job.stem)
    attrs["measuring_s"] = round(budget.spent_s, 1)


def measure_cell(open_step: OpenStep, cell: DecodeCell) -> list[dict[str, Any]]:
    """One row of COLUMNS per mode of the cell."""
    step = open_step(cell.batch, cell.context, modes=cell.modes, k_blocks=cell.k_blocks)
    samples: dict[str, list[float]] = {mode: [] for mode in cell.modes}
    for _ in range(ROUNDS):
        for mode, found in samples.items():
            found += np.asarray(step.time_s(mode, SAMPLES)).tolist()
    summaries = getattr(step, "summaries", None) or []
    scan = float(sum(s.bytes_per_block * s.data.shape[1] * (cell.context // step.block) * cell.batch for s in summaries))
    return [
        {
            **_requested(cell, mode),
            "status": "ok",
            **summarize(values, "step_s"),
            "block_tokens": step.block,
            "weight_bytes": float(step.weight_bytes),
            "kv_bytes": float(step.kv_bytes),
            "keep_bytes": float(step.keep_bytes) if mode != "dense" else 0.0,
            "scan_bytes": scan if mode != "dense" else 0.0,
        }
        for mode, values in samples.items()
    ]


def _requested(cell: DecodeCell, mode: str) -> dict[str, Any]:
    k = 0 if mode == "dense" else cell.k_blocks
    return {"mode": mode, "batch": cell.batch, "context_tokens": cell.context, "k_blocks": k, "error": ""}


def measure(
    open_step: OpenStep, gate: Callable[[Any, str], float], cells: Sequence[DecodeCell], journal: Journal, budget: Budget, name: str
) -> dict[str, Any]:
    """Gates, the grid until done or out of budget, the gates again. Returns attributes."""
    attrs = {f"gate_before_{k}": v for k, v in gates(open_step, gate).items()}
    for cell in paced([c for c in cells if c.key not in journal], budget, name, reserve_s=4.0):
        rows, status, error = attempt(partial(measure_cell, open_step, cell))
        rows = rows or [_requested(cell, mode) | {"status": status, "error": error} for mode in cell.modes]
        journal.add(cell.key, rows=rows)
    attrs |= {f"gate_after_{k}": v for k, v in gates(open_step, gate).items()}
    passed = all(v <= GATE_BOUND for v in attrs.values())  # NaN passes no bound
    done = all(c.key in journal for c in cells)
    return attrs | {"gate_bound": GATE_BOUND, "gate_passed": int(passed), "finished": int(done)}


def gates(open_step: OpenStep, gate: Callable[[Any, str], float]) -> dict[str, float]:
    """Relative error of the logits against float64 by mode and batch."""
    found: dict[str, float] = {}
    for batch in GATE_BATCHES:
        step = open_step(batch, GATE_CONTEXT, modes=("dense", "sparse"), k_blocks=8)
        found |= {f"{mode}_b{batch}": float(gate(step, mode)) for mode in ("dense", "sparse")}
        del step
    return found


def dataset(records: Sequence[dict[str, Any]], attrs: dict[str, Any]) -> Any:
    """The journal as an xarray Dataset along `cell`."""
    import xarray as xr

    rows = [row for r in records for row in r["rows"]]
    ok = sum(r["status"] == "ok" for r in rows)
    return xr.Dataset(table("cell", rows, COLUMNS), attrs={"protocol": PROTOCOL, "cells_ok": ok, "cells_failed": len(rows) - ok, **attrs})
