"""The recurrent-state facts follow from the layer's shape: bytes per call, bandwidth reached, shares of the step."""

import math

import pytest

from sim.specs.model import GatedDeltaNet
from sim.specs.precision import STATE_BYTES
from studies.reference_tables import table

WORKLOAD = {row["key"]: row["value"] for row in table("gdn", "workload")}
BATCH = int(WORKLOAD["decode_batch"])
PEAK = float(WORKLOAD["peak_bw_gb_per_s"])
LAYERS = 48
STATE = GatedDeltaNet(
    key_heads=16,
    value_heads=int(WORKLOAD["heads_H"]),
    key_dim=int(WORKLOAD["state_dim_k"]),
    value_dim=int(WORKLOAD["state_dim_v"]),
)
CALL_BYTES = 2 * BATCH * STATE.state_elements() * STATE_BYTES  # read and written
CALL = {(r["engine"], r["state_dtype"]): r for r in table("gdn", "recurrence_efficiency")}
BOUNDS = {r["scenario"]: r for r in table("gdn", "throughput_bounds")}
LEVER = {(r["lever"], r["metric"]): float(r["value"]) for r in table("gdn", "lever_facts")}


def duration_s(engine):
    return float(CALL[engine, "f32"]["duration_ms_per_call"]) / 1e3


def test_d01_state_bytes_of_one_call():
    assert CALL_BYTES == 805_306_368
    assert float(CALL["llama.cpp", "f32"]["bytes_rw_per_call_mb"]) * 1e6 == pytest.approx(CALL_BYTES, rel=1e-3)


@pytest.mark.parametrize("key", CALL, ids="-".join)
def test_d02_bandwidth_reached_and_its_share_of_the_peak(key):
    row = CALL[key]
    moved = CALL_BYTES if row["state_dtype"] == "f32" else CALL_BYTES / 2
    reached = moved / (float(row["duration_ms_per_call"]) / 1e3) / 1e9
    assert reached == pytest.approx(float(row["effective_bw_gb_per_s"]), abs=0.5)
    assert reached / PEAK * 100 == pytest.approx(float(row["pct_of_peak"]), abs=0.5)


def test_d03_programs_launched_by_the_two_engines():
    grid = {r["engine"]: int(r["blocks_or_programs"]) for r in table("gdn", "kernel_geometry")}
    assert grid["llama.cpp"] == STATE.value_heads * BATCH * math.ceil(STATE.value_dim / 4)
    assert grid["vllm"] == STATE.value_dim // 32 * BATCH * STATE.value_heads
    assert grid["llama.cpp"] / grid["vllm"] == LEVER["vllm program count ratio", "llama_over_vllm"]


def test_d04_recurrence_is_half_of_the_step_and_retuning_it_saves_17_ms():
    step_s = float(BOUNDS["llama current"]["step_ms"]) / 1e3
    share = LAYERS * duration_s("llama.cpp") / step_s
    assert share == pytest.approx(LEVER["occupancy retune", "recurrence_share_of_step"] / 100, rel=0.03)
    now, retuned = (float(CALL[e, "f32"]["pct_of_peak"]) for e in ("llama.cpp", "vllm"))
    saving_ms = LAYERS * duration_s("llama.cpp") * 1e3 * (1 - now / retuned)
    assert saving_ms == pytest.approx(LEVER["occupancy retune", "step_gain"], rel=0.03)


def test_d05_throughput_is_the_batch_over_the_step():
    for row in BOUNDS.values():
        if row["step_ms"]:
            assert BATCH / (float(row["step_ms"]) / 1e3) == pytest.approx(float(row["decode_tps"]), rel=0.01)
    ratio = float(BOUNDS["llama recurrence retuned 74->81 pct"]["decode_tps"]) / float(BOUNDS["vllm"]["decode_tps"])
    assert ratio == pytest.approx(0.90, rel=0.01)


def test_d06_half_width_state_would_overclock_the_step():
    step_s = float(BOUNDS["llama current"]["step_ms"]) / 1e3 - LAYERS * duration_s("llama.cpp") / 2
    assert BATCH / step_s == pytest.approx(float(BOUNDS["llama bf16 state over-clock"]["decode_tps"]), rel=0.02)


def test_d07_recomputing_the_state_is_cheapest_every_eleven_steps():
    state = CALL_BYTES / 2
    replay = 2 * STATE.key_dim * STATE_BYTES * BATCH * STATE.value_heads  # one rank-one update: a key and a value row

    def bytes_per_step(n):
        return state + state / n + n / 2 * replay

    best = min(range(1, 65), key=bytes_per_step)
    assert best == LEVER["recompute", "optimal_n_approx"]
    assert bytes_per_step(best) == pytest.approx(LEVER["recompute", "bytes_per_step"] * 1e6, rel=0.01)
    assert bytes_per_step(best) / CALL_BYTES == pytest.approx(LEVER["recompute", "fraction_of_f32_bytes"], rel=0.01)
