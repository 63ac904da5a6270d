"""Whole-model cells of the benchmark: one decode step in the shape of a 7B model, dense, sparse and tiered."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import numpy as np
import torch

from kernels import reference, reference_model, timing
from kernels.bench_attention import Timer
from kernels.model_shape import SHAPES
from kernels.model_step import Step
from kernels.results import Row, row

SHAPE = "Qwen2.5-7B"
K, M = 2**10, 2**20
LOGITS_BOUND = 6e-2  # bf16 activations through 28 layers, against float64


def cells(timer: Timer, link_bytes_per_s: float, quick: bool, host_step: bool) -> Iterator[Callable[[], list[Row]]]:
    """The cells that fit this GPU, most informative first."""
    name = "Qwen2.5-0.5B" if quick else SHAPE
    grid = [
        (1, 8 * K),
        (1, M),
        (8, 8 * K),
        (1, 128 * K),
        (8, 32 * K),
        (8, 128 * K),
        (2, 32 * K),
        (4, 32 * K),
        (32, 8 * K),
        (1, 2 * M),
        (32, 32 * K),
        (2, M),
    ]
    if quick:
        grid = [(1, 4 * K), (2, 4 * K)]
    for batch, context in grid:
        gc.collect()
        torch.cuda.empty_cache()
        if needed_bytes(name, batch, context) <= torch.cuda.mem_get_info()[0]:
            yield lambda b=batch, c=context: on_device(timer, name, b, c)
    # 256 tokens below a power of two, so that cache and headroom together pin exactly that.
    yield lambda: tiered(timer, link_bytes_per_s, name, (4 if quick else 128) * K - 256)
    if host_step:
        yield lambda: tiered(timer, link_bytes_per_s, name, M - 256)


def needed_bytes(name: str, batch: int, context: int) -> int:
    """Device bytes of a dense and sparse step: weights, cache, summaries, and what the runtime takes."""
    s = SHAPES[name]
    weights = s.weights_read + (0 if s.tied_embeddings else s.vocab * s.hidden)
    cache = batch * (context + 256) * s.kv_per_token * 2
    return int(weights * 2 + cache * (1 + 1 / 250) + 0.6e9)


def on_device(timer: Timer, name: str, batch: int, context: int) -> list[Row]:
    """Dense and sparse steps over the same weights and cache, interleaved."""
    step = Step(SHAPES[name], batch, context, modes=("dense", "sparse"))
    before = _gate(step) if batch * context <= 8 * K else float("nan")
    times: dict[str, list[np.ndarray]] = {"dense": [], "sparse": []}
    for _ in range(max(3, timer.repeats // 3)):
        for mode in times:
            times[mode].append(step.time_s(mode, repeats=2))
    after = _gate(step) if batch * context <= 8 * K else float("nan")
    scan = sum(s.bytes_per_block * s.data.shape[1] * (context // step.block) * batch for s in step.summaries)
    kept = step.keep_bytes * (step.k_blocks + 3) // step.k_blocks
    rows = []
    for mode, values in times.items():
        stats = timing.spread(np.concatenate(values))
        moved = step.weight_bytes + (step.kv_bytes if mode == "dense" else scan + kept)
        floor = moved / timer.read_bytes_per_s
        rows.append(row(
            "step", f"decode_step {name}", mode, batch=batch, context=context, k_blocks=step.k_blocks if mode == "sparse" else 0,
            dtype="bfloat16", median=stats["median_s"], p10=stats["p10_s"], p90=stats["p90_s"], repeats=stats["repeats"],
            moved=float(moved), rate=moved / stats["median_s"], of_floor=floor / stats["median_s"],
            error_before=before if mode == "dense" else float("nan"), error_after=after if mode == "dense" else float("nan"),
            error_bound=LOGITS_BOUND, note="" if mode == "sparse" or not max(before, after) > LOGITS_BOUND else "failed its gate",
        ))  # fmt: skip
        timer.log(f"step {mode:7} B={batch:<3} C={context:<8} {stats['median_s'] * 1e3:8.3f} ms "
                  f"over its bytes {(stats['median_s'] - floor) * 1e3:7.3f} ms err {before:.1e}")  # fmt: skip
    return rows


def _gate(step: Step) -> float:
    """Relative error of the replayed step's logits against the float64 step."""
    step.reset()
    want = reference_model.advance(step, reference_model.history(step), list(range(step.batch)))
    step.run("dense")
    error = reference.relative_error(step.logits, want)
    step.reset()
    return error


def tiered(timer: Timer, link_bytes_per_s: float, name: str, context: int, k_blocks: int = 32) -> list[Row]:
    """The step with its cache in host memory. `of_floor` is against weights over read floor plus keep-set over link."""
    step = Step(SHAPES[name], 1, context, modes=("tiered",), k_blocks=k_blocks)
    stats = timing.spread(step.time_s("tiered", repeats=timer.repeats))
    floor = step.weight_bytes / timer.read_bytes_per_s + step.keep_bytes / link_bytes_per_s
    dense = step.weight_bytes / timer.read_bytes_per_s + step.kv_bytes / link_bytes_per_s
    timer.log(
        f"step tiered  C={context:<8} {stats['median_s'] * 1e3:8.3f} ms floor {floor * 1e3:.3f} ms dense over link {dense * 1e3:.1f} ms"
    )
    return [
        row(
            "step", f"decode_step {name}", "tiered", batch=1, context=context, k_blocks=k_blocks, dtype="bfloat16",
            median=stats["median_s"], p10=stats["p10_s"], p90=stats["p90_s"], repeats=stats["repeats"],
            moved=float(step.weight_bytes + step.keep_bytes), rate=step.keep_bytes / stats["median_s"],
            of_floor=floor / stats["median_s"], note="rate is of the link; of_floor counts weights and link in sequence",
        ),
        row(
            "step", f"decode_step {name}", "dense over link, floor", batch=1, context=context, dtype="bfloat16", median=dense,
            moved=float(step.weight_bytes + step.kv_bytes), of_floor=1.0, note="computed from the floors of this run",
        ),
    ]  # fmt: skip
