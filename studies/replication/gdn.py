"""The gated-delta-net report: state bytes, bandwidth reached, and what throughput they allow."""

from __future__ import annotations

import math

from sim.specs.model import GatedDeltaNet
from sim.specs.precision import STATE_BYTES
from studies.reference_tables import table
from studies.replication import measured
from studies.replication.claims import Claim, compared, untestable

LAYERS, MOE_LAYERS, MOE_HEADS = 48, 30, 32


def claims() -> list[Claim]:
    """In the order of the list."""
    facts = {row["key"]: row["value"] for row in table("gdn", "workload")}
    state = GatedDeltaNet(16, int(facts["heads_H"]), int(facts["state_dim_k"]), int(facts["state_dim_v"]))
    batch, peak = int(facts["decode_batch"]), float(facts["peak_bw_gb_per_s"])
    moved = 2.0 * batch * state.state_elements() * STATE_BYTES  # read and written
    found = [*_recurrence(moved, peak), *_programs(state, batch), *_bounds(batch), *_levers(state, batch, moved), *_others()]
    return sorted([*found, *measured.gdn()], key=lambda c: c.name)


def _calls() -> dict[tuple[str, str], dict[str, str]]:
    return {(r["engine"], r["state_dtype"]): r for r in table("gdn", "recurrence_efficiency")}


def _recurrence(moved: float, peak: float) -> list[Claim]:
    printed = float(_calls()["llama.cpp", "f32"]["bytes_rw_per_call_mb"])
    off, texts = [], []
    for (engine, dtype), row in _calls().items():
        reached = moved * (1.0 if dtype == "f32" else 0.5) / float(row["duration_ms_per_call"]) / 1e6
        off += [abs(reached - float(row["effective_bw_gb_per_s"])), abs(100 * reached / peak - float(row["pct_of_peak"]))]
        texts.append(f"{engine} {dtype.split()[0]} {reached:.0f} GB/s")
    return [
        compared(
            "D01", f"{printed:g} MB read and written per call", f"{moved / 1e6:.1f} MB", abs(moved / 1e6 / printed - 1), 1e-3, "formula"
        ),
        compared("D02", "202 and 222 GB/s, 74 and 81 % of the peak; bf16 111", ", ".join(texts), max(off), 0.5),
    ]


def _programs(state: GatedDeltaNet, batch: int) -> list[Claim]:
    grid = {r["engine"]: int(r["blocks_or_programs"]) for r in table("gdn", "kernel_geometry")}
    mine = {
        "llama.cpp": state.value_heads * batch * math.ceil(state.value_dim / 4),
        "vllm": state.value_dim // 32 * batch * state.value_heads,
    }
    off = max(abs(mine[engine] - grid[engine]) for engine in mine)
    return [compared("D03", f"{grid['llama.cpp']} and {grid['vllm']} programs", f"{mine['llama.cpp']} and {mine['vllm']}", off, 0)]


def _bounds(batch: int) -> list[Claim]:
    rows = {r["scenario"]: r for r in table("gdn", "throughput_bounds")}
    levers = {(r["lever"], r["metric"]): float(r["value"]) for r in table("gdn", "lever_facts")}
    call_ms, step_ms = (float(v) for v in (_calls()["llama.cpp", "f32"]["duration_ms_per_call"], rows["llama current"]["step_ms"]))
    shares = [float(_calls()[engine, "f32"]["pct_of_peak"]) for engine in ("llama.cpp", "vllm")]
    share, saved = 100 * LAYERS * call_ms / step_ms, LAYERS * call_ms * (1 - shares[0] / shares[1])
    wanted = levers["occupancy retune", "recurrence_share_of_step"], levers["occupancy retune", "step_gain"]
    timed = {name: (batch / float(r["step_ms"]) * 1e3, float(r["decode_tps"])) for name, r in rows.items() if r["step_ms"]}
    clocked = float(rows["llama bf16 state over-clock"]["decode_tps"])
    mine = batch / (step_ms - LAYERS * call_ms / 2) * 1e3
    return [
        compared(
            "D04",
            f"{wanted[0]:g} % of a step; retuned it saves {wanted[1]:g} ms",
            f"{share:.1f} %, {saved:.1f} ms",
            max(abs(share / wanted[0] - 1), abs(saved / wanted[1] - 1)),
            0.03,
        ),
        compared(
            "D05",
            " and ".join(f"{theirs:g}" for _, theirs in timed.values()) + " tok/s of 128",
            ", ".join(f"{m:.1f}" for m, _ in timed.values()),
            max(abs(m / theirs - 1) for m, theirs in timed.values()),
            0.01,
        ),
        compared("D06", f"half the state's bytes allow {clocked:g} tok/s", f"{mine:.0f} tok/s", abs(mine / clocked - 1), 0.02),
    ]


def _levers(state: GatedDeltaNet, batch: int, moved: float) -> list[Claim]:
    levers = {(r["lever"], r["metric"]): float(r["value"]) for r in table("gdn", "lever_facts")}
    replay = 2 * state.key_dim * STATE_BYTES * batch * state.value_heads  # one rank-one update: a key and a value row

    def per_step(every: int) -> float:
        return moved / 2 * (1 + 1 / every) + every / 2 * replay

    best = min(range(1, 65), key=per_step)
    printed = levers["recompute", "optimal_n_approx"], levers["recompute", "bytes_per_step"]
    rows = {(r["model"], r["bandwidth_case"]): float(r["ms_per_step_all_layers"]) for r in table("gdn", "derived_state_traffic_per_step")}
    of = {"moe": MOE_LAYERS * moved * MOE_HEADS / LAYERS, "dense": LAYERS * moved}
    mine = {model: total / 202e9 * 1e3 for model, total in of.items()}
    return [
        compared(
            "D07",
            f"recomputing every {printed[0]:g} steps moves {printed[1]:g} MB",
            f"every {best}: {per_step(best) / 1e6:.1f} MB",
            max(abs(best - printed[0]), abs(per_step(best) / 1e6 / printed[1] - 1)),
            0.01,
        ),
        compared(
            "D08",
            "state of a step at 202 GB/s: 79.7 ms (MoE), 191.4 (dense)",
            f"{mine['moe']:.1f} ms, {mine['dense']:.1f}",
            max(abs(mine[m] / rows[m, "llama.cpp"] - 1) for m in mine),
            0.10,
            "formula",
        ),
    ]


def _others() -> list[Claim]:
    true = {r["engine"]: float(r["true_decode_tps"]) for r in table("gb10", "decode_difference_method") if r["model"] == "dense"}
    rows = {r["scenario"]: float(r["decode_tps"]) for r in table("gdn", "throughput_bounds")}
    here, there = rows["llama current"] / rows["vllm"], true["llama.cpp-paged"] / true["vllm"]
    native = [r for r in table("gb10", "kernel_buckets") if "nvfp4" in r["bucket"]]
    return [
        compared(
            "X01", "activations are quantised to 8 bits", f"{len(native)} profiled kernels of the same build are of nvfp4", len(native), 0
        ),
        untestable(
            "X02",
            f"335 of 391 tok/s, and {true['llama.cpp-paged']:g} of {true['vllm']:g}",
            f"graphs off and on: {here:.3f} and {there:.3f} of vLLM",
        ),
    ]
