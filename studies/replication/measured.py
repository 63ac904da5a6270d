"""Claims of the reports measured again on an H100 and an H200: batch knees, decode steps, decode kernels, and gates of the output.

Other kernels and another engine than the reports': a figure within WITHIN of theirs counts as theirs. Intervals are those of this
measurement's repeats, or of knees drawn again; cards and engine releases differ by more.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from calibrate.measurement import open_measurement
from sim.closed_form.knee import Knee, continuous_knee
from sim.specs.gpus import get_gpu
from studies.knees import weight_axis
from studies.knees.ranks import spearman
from studies.reference_tables import table
from studies.replication.claims import Claim, compared

Array = NDArray[np.float64]
Cell = tuple[str, int]  # model, context in tokens
FOLDER = Path(str(files("scenarios"))) / "data" / "measured"
WITHIN = 0.10
LADDER_STEP = 1.5  # the study's batches are up to half as much again apart: 2, 4, 6, 8, 12, 16, 24, 32, 48
DECODE = {"H100": "h100/decode_qwen2.5-7b.nc", "H200": "h200/decode_qwen2.5-7b_1.nc"}
DRAWS = 2000
K8, K128, K1024 = 8192, 131072, 1048576  # tokens


class Median(NamedTuple):
    """A median of repeats and draws [draw] of it."""

    value: float
    draws: Array

    @classmethod
    def of(cls, value: float, low: float, high: float, between: float, repeats: float) -> Median:
        """Of normal repeats, with `between` standard deviations from `low` to `high`: the median's error is 1.25 that of the mean."""
        sd = 1.2533 * (high - low) / between / np.sqrt(repeats)
        return cls(value, value + sd * np.random.default_rng(round(value * 1e12)).standard_normal(DRAWS))

    def over(self, other: Median) -> Median:
        """Their ratio."""
        return Median(self.value / other.value, self.draws / other.draws)


def _near(name: str, published: str, theirs: float, mine: Median, unit: str, note: str = "") -> Claim:
    """A published figure beside ours."""
    ours = f"{mine.value:.4g} {unit}{note}"
    return compared(name, published, ours, abs(mine.value / theirs - 1), WITHIN, "measured", mine.draws, unit)


def published_knees() -> dict[Cell, float]:
    """Published continuous knees; the confirming runs are left out."""
    rows = (row for row in table("tr164", "derived_model_knees") if "confirm" not in row["run"])
    return {
        (f"{r['family']}-{r['model_size'].lower()}", int(r["context_tokens"])): float(r["observed_continuous_knee_batch"]) for r in rows
    }


def curves() -> Iterator[tuple[str, int, list[int], list[float]]]:
    """(model, context, batches, step times in s) of every measured ladder that begins with a single sequence."""
    for path in sorted((FOLDER / "h100").glob("weight-axis_*.nc")):
        data = open_measurement(path, ("role", "step_s_n", "step_s_median", "context_tokens", "batch"))
        counted = data.isel(cell=(data.role.values.astype(str) == "grid") & (data.step_s_n.values > 0))
        rows = sorted(zip(counted.context_tokens.values.round(), counted.batch.values, counted.step_s_median.values, strict=True))
        for context, group in groupby(rows, key=lambda row: int(row[0])):
            ladder = [(int(batch), float(step_s)) for _, batch, step_s in group]
            if ladder[0][0] == 1 and len(ladder) > 1:
                yield data.attrs["model"], context, [batch for batch, _ in ladder], [step_s for _, step_s in ladder]


def tr164() -> list[Claim]:
    """Knees of the same shapes on our H100."""
    ladders = {(m, c): (b, [t[0] / x for x in t]) for m, c, b, t in curves()}
    theirs, ours = published_knees(), {cell: continuous_knee(*ladder) for cell, ladder in ladders.items()}
    both = [cell for cell in theirs if cell in ours and not ours[cell].censored]
    gemma = [cell for cell in both if "gemma" in cell[0]]
    shape, context, last = weight_axis.uncrossed()
    eta = dict(zip(*ladders[shape.name, context], strict=True))[int(last)]
    pairs = [p for p in weight_axis.contrasts() if {(m.name, p.context_tokens) for m in (p.small, p.large)} <= set(both)]
    right = weight_axis.right_signs(lambda s, c: ours[s.name, c].batch, pairs)
    return [
        _knees("TM1", "Qwen and Mistral", [cell for cell in both if cell not in gemma], theirs, ours),
        _knees("TM2", "Gemma", gemma, theirs, ours),
        compared(
            "TM3",
            f"{shape.name} at {context} has no knee by {last:g}",
            f"eta({last:g}) {eta:.3f}, a knee at {ours[shape.name, context].batch:.1f}",
            max(last / ours[shape.name, context].batch - 1, 0),
            WITHIN,
            "measured",
        ),
        compared(
            "TM4", f"the larger model has the larger knee or not, {len(pairs)} times", f"{right} agree", len(pairs) - right, 0, "measured"
        ),
    ]


def _knees(name: str, of: str, cells: list[Cell], theirs: Mapping[Cell, float], ours: Mapping[Cell, Knee]) -> Claim:
    x, y = np.array([theirs[cell] for cell in cells]), np.array([ours[cell].batch for cell in cells])
    factors = np.exp(np.abs(np.log(y / x)))
    drawn = np.median(np.random.default_rng(0).choice(factors, (DRAWS, factors.size)), axis=1)
    text = f"{np.median(factors):.2f} x apart in the median, {factors.max():.2f} at worst; Spearman {spearman(list(x), list(y)):.3f}"
    return compared(name, f"{len(cells)} knees of {of}", text, float(factors.max()), LADDER_STEP, "measured", drawn, "x")


@functools.cache
def _decode(gpu: str) -> Any:
    """Decode steps of Qwen2.5-7B that ran, as a frame with a row per (batch, context_tokens, k_blocks); k = 0 is dense."""
    frame = open_measurement(FOLDER / DECODE[gpu]).to_dataframe()
    return frame[(frame.status == "ok") & (frame["mode"] != "tiered")].set_index(["batch", "context_tokens", "k_blocks"]).sort_index()


def _step(gpu: str, batch: int, context: int, k: int) -> Median:
    row = _decode(gpu).loc[(batch, context, k)]
    return Median.of(row.step_s_median, row.step_s_p25, row.step_s_p75, 1.349, row.step_s_n)


def brl07() -> list[Claim]:
    """Dense and sparse decode, as whole steps and as kernels; gates of both."""
    said = {(r["platform"], r["metric"], r["batch"], r["context_label"]): float(r["value"]) for r in table("brl07", "end_to_end")}
    sparse = "sparse_over_dense"
    found = [
        _near(f"BM0{i}", f"{gpu}: sparse {theirs:g} x dense at {label}, batch {batch}", theirs,
              _step(gpu, batch, context, 0).over(_step(gpu, batch, context, k)), "x", f" (k = {k})")
        for i, (gpu, batch, context, label, k) in enumerate(
            (("H100", 1, K8, "8K", 8), ("H200", 1, K1024, "1M", 32), ("H200", 8, K128, "128K", 32)), 1)
        for theirs in [said[gpu, sparse, str(batch), label]]
    ]  # fmt: skip
    slow = _step("H200", 1, K1024, 32)
    decay, rate = said["H200", "dense_decay", "", "128K->1M"], said["H200", "sparse_per_seq_throughput_min", "1", "128K-1M"]
    return [
        *found,
        _near("BM04", f"H200: a dense step takes {decay:g} x as long at 1M as at 128K", decay,
              _step("H200", 1, K1024, 0).over(_step("H200", 1, K128, 0)), "x"),
        _near("BM05", f"H200: sparse decodes {rate:g} tok/s at 1M, k = 32", rate, Median(1 / slow.value, 1 / slow.draws), "tok/s"),
        *_three_parameters(),
        *_kernels(),
        _gates(),
    ]  # fmt: skip


def _three_parameters() -> list[Claim]:
    """Single streams by t = c0 + bytes / beta + c1(k), as published; `docs/replication.md` has it by GPU and batch."""
    printed = {(r["symbol"], r["k_blocks"]): float(r["value"]) for r in table("brl07", "cost_model_params")}
    cells = _decode("H100").loc[1].reset_index()
    dense = cells[cells.k_blocks == 0]
    moved = dense.weight_bytes + dense.kv_bytes
    (c0, slope), *_ = np.linalg.lstsq(np.column_stack([1 / dense.step_s_median, moved / dense.step_s_median]), np.ones(len(dense)))
    bare = cells.assign(c1_s=cells.step_s_median - c0 - cells.weight_bytes * slope)
    c1 = {k: float(np.average(rows.c1_s, weights=rows.step_s_median**-2)) for k, rows in bare[bare.k_blocks > 0].groupby("k_blocks")}
    fixed = [(1e3 * c0, printed["c0", ""]), *((1e3 * c1[k], printed["c1", str(k)]) for k in (8, 32))]
    mine, theirs = (", ".join(f"{pair[i]:.2g}" for pair in fixed) for i in (0, 1))
    beta, mine_beta = printed["beta", ""], 1e-12 / slope
    off = max(abs(m / t - 1) for m, t in fixed)
    return [
        compared(
            "BM06", f"H100: single streams read {beta:g} TB/s", f"{mine_beta:.2f} TB/s", abs(mine_beta / beta - 1), WITHIN, "measured"
        ),
        compared("BM07", f"H100: c0, c1(8), c1(32) {theirs} ms", f"{mine} ms, in one CUDA graph", off, WITHIN, "measured"),
    ]


def _timed(op: str, variant: str) -> dict[tuple[int, int], Median]:
    """Kernel times on the H100 in us by (batch, context): those of the fewest blocks and of the most bytes."""
    frame = open_measurement(FOLDER / "kernels" / "kernels_h100.nc").to_dataframe()
    rows = frame[(frame.op == op) & (frame.variant == variant)].sort_values(["k_blocks", "moved"], ascending=[False, True])
    us = ((r, 1e6 * r["median"], 1e6 * r.p10, 1e6 * r.p90) for _, r in rows.iterrows())
    return {(int(r.batch), int(r.context)): Median.of(median, low, high, 2.563, r.repeats) for r, median, low, high in us}


def _kernels() -> list[Claim]:
    rows = {(r["metric"], r["batch"], r["context_label"]): float(r["value"]) for r in table("brl07", "op_level")}
    op_us, of_8, of_1 = rows["latency", "8", "1M"], rows["speedup", "8", "1M"], rows["speedup", "1", "1M"]
    dense, sparse = _timed("dense_decode", "paged"), _timed("select_gather", "minmax_fp8")
    faster = {batch: dense[batch, K1024].over(sparse[batch, K1024]) for batch in (8, 1)}
    return [
        _near("BM08", f"dense op {op_us:g} us at 1M, batch 8", op_us, dense[8, K1024], "us"),
        _near("BM09", f"sparse op {of_8:g} x dense at 1M, batch 8", of_8, faster[8], "x", " (k = 8)"),
        _near("BM10", f"sparse op {of_1:g} x dense at 1M, batch 1", of_1, faster[1], "x", " (k = 8)"),
    ]


def _gates() -> Claim:
    attrs = [open_measurement(FOLDER / file).attrs for file in DECODE.values()]
    gates = [
        (value, each[name.replace("before", "after")]) for each in attrs for name, value in each.items() if name.startswith("gate_before")
    ]
    same = sum(before == after for before, after in gates)
    text = f"{same} of {len(gates)} decode steps, before and after a run, by every digit of their error"
    return compared("BM11", "the same engine gives the same output again", text, len(gates) - same, 0, "measured")


def gdn() -> list[Claim]:
    """vLLM's kernel of the gated delta rule, and one of ours with half the bytes of state, on an H100."""
    calls = {(r["engine"], r["state_dtype"]): r for r in table("gdn", "recurrence_efficiency")}
    share = float(calls["vllm", "f32"]["pct_of_peak"])
    theirs, full, halved = (_timed("gdn_decode", v)[128, 0] for v in ("engine_fused_recurrent", "f32_state", "bf16_state"))
    fastest_us = 1e12 * float(calls["vllm", "f32"]["bytes_rw_per_call_mb"]) / get_gpu("H100").memory_bandwidth
    return [
        _near(
            "DM1",
            f"vLLM's kernel reaches {share:g} % of the peak, batch 128",
            share,
            Median(100 * fastest_us / theirs.value, 100 * fastest_us / theirs.draws),
            "%",
            " of an H100's",
        ),
        _near("DM2", "half the bytes of state take half the time", 0.5, halved.over(full), "of the time", ": our kernels on an H100"),
    ]
