"""The GB10 serving facts recompute from one another: throughputs, admission traces, reported ratios and deltas."""

import re
from collections import Counter

import pytest

from studies.reference_tables import table

SERVING = table("gb10", "serving")
WALLS = [r for r in SERVING if r["wall_s"] and r["agg_tps"] and r["gen_tokens"] and r["engine"] != "vllm"]
TIMED = [r for r in WALLS if r["ttft_max_ms"]]


def generated(row):
    return float(row["n_concurrent"]) * float(row["gen_tokens"])


def test_g01_difference_method_decode_is_extra_tokens_over_extra_wall():
    for row in table("gb10", "decode_difference_method"):
        assert float(row["delta_tokens"]) / float(row["delta_wall_s"]) == pytest.approx(float(row["true_decode_tps"]), abs=0.01)


def test_g02_aggregate_throughput_is_generated_tokens_over_wall():
    assert len(WALLS) == 30
    for row in WALLS:
        assert generated(row) / float(row["wall_s"]) == pytest.approx(float(row["agg_tps"]), rel=1e-3)


def test_g03_head_to_head_decode_counts_from_the_last_first_token():
    assert len(TIMED) == 22
    for row in TIMED:
        window_s = float(row["wall_s"]) - float(row["ttft_max_ms"]) / 1e3
        assert generated(row) / window_s == pytest.approx(float(row["decode_agg_tps"]), rel=1e-3)


def test_g04_prefill_throughput_is_prompt_tokens_over_the_last_first_token():
    rows = [r for r in TIMED if r["prompt_tokens_total"]]
    assert len(rows) == 2
    for row in rows:
        rate = float(row["prompt_tokens_total"]) / (float(row["ttft_max_ms"]) / 1e3)
        assert rate == pytest.approx(float(row["prefill_tps"]), rel=1e-3)


def test_g06_every_admission_histogram_counts_76_steps():
    totals = Counter()
    for row in table("gb10", "admission_hist"):
        totals[row["phase"], row["variant"], row["histogram"]] += int(row["steps_count"])
    assert len(totals) == 9
    assert set(totals.values()) == {76}


def test_g07_decode_tokens_and_step_averages_of_the_dense_trace():
    trace = next(r for r in table("gb10", "admission_trace") if r["phase"] == "52")
    steps, clients, gen = (int(trace[c]) for c in ("steps", "n_concurrent", "gen_tokens"))
    assert clients * (gen - 1) == int(trace["decode_tokens"])
    reported = {r["metric"]: float(r["value"]) for r in table("gb10", "admission_derived_reported") if r["phase"] == "52"}
    assert int(trace["decode_tokens"]) / steps == pytest.approx(reported["avg_decode_tokens_per_step"], abs=0.01)
    assert int(trace["waiting_prompt_slots_sum"]) / steps == pytest.approx(reported["avg_waiting_prompt_slots_per_step"], abs=0.01)
    # 22785 / 76 is 299.803, printed 299.8
    assert int(trace["prompt_tokens"]) / steps == pytest.approx(reported["avg_prompt_tokens_per_step"], abs=0.01)


def test_g08_prefill_first_runs_every_prompt_step_before_any_decode():
    variant = "LLAMA_TTFT_PREFILL_FIRST=1"
    trace = next(r for r in table("gb10", "admission_trace") if r["variant"] == variant)
    bins = {(r["histogram"], r["bin"]): int(r["steps_count"]) for r in table("gb10", "admission_hist") if r["variant"] == variant}
    prompts = {b: n for (h, b), n in bins.items() if h == "prompt_tokens_per_step" and b != "0"}
    full = prompts["513+"]
    left = int(trace["prompt_tokens"]) - full * int(trace["last_n_batch"])
    # what the full steps leave over splits into one small and one middling step
    assert (full, left) == (11, 385)
    assert prompts == {"1-64": 1, "257-512": 1, "513+": 11}
    assert bins["decode_tokens_per_step", "0"] == sum(prompts.values()) == 13
    assert bins["decode_tokens_per_step", "128-255"] == int(trace["gen_tokens"]) - 1
    assert sum(prompts.values()) + int(trace["gen_tokens"]) - 1 == int(trace["steps"])


def test_g11_reported_engine_ratios_recompute_from_the_serving_rows():
    rows = {(r["phase"], r["engine"], r["model"], r["n_concurrent"]): r for r in SERVING}
    columns = {"decode_agg": "decode_agg_tps", "decode_per_seq": "decode_per_seq_tps", "agg": "agg_tps", "ttft_mean": "ttft_mean_ms"}
    checked = 0
    for row in table("gb10", "reported_ratios"):
        if row["phase"] not in ("20", "26", "40", "41", "47"):
            continue
        column = columns[re.sub(r"(_tps)?_(ratio|pct|x)$", "", row["metric"])]
        top, bottom = (float(rows[row["phase"], e, row["model"], row["n_concurrent"]][column]) for e in ("llama.cpp-paged", "vllm"))
        percent = row["metric"].endswith("pct")
        decimals = len(row["value"].partition(".")[2])
        # half a unit in the last printed place, and a whisker for ties
        assert top / bottom * (100 if percent else 1) == pytest.approx(float(row["value"]), abs=0.51 * 10**-decimals), row
        checked += 1
    assert checked > 40


CHANGED = {
    ("55", "dense", "128"): "prefill_first vs default",
    ("56", "moe", "128"): "prefill_first vs default",
    ("56", "dense", "32"): "prefill_first vs default",
    ("59", "moe", "128"): "min32 vs default",
}


def test_g12_scheduler_deltas_recompute_from_the_serving_rows():
    checked = 0
    for (phase, model, n), comparison in CHANGED.items():
        rows = [r for r in SERVING if (r["phase"], r["model"], r["n_concurrent"]) == (phase, model, n) and r["engine"] != "vllm"]
        before = next(r for r in rows if r["variant"] == "default")
        after = next(r for r in rows if r["variant"] != "default")
        for row in table("gb10", "scheduler_reported_deltas"):
            if (row["phase"], row["model"], row["n_concurrent"], row["comparison"]) != (phase, model, n, comparison):
                continue
            column = {"ttft_mean": "ttft_mean_ms", "ttft_max": "ttft_max_ms", "wall": "wall_s"}.get(row["metric"], row["metric"])
            change = (float(after[column]) / float(before[column]) - 1) * 100
            assert change == pytest.approx(float(row["reported_delta_pct"]), abs=0.051), row
            checked += 1
    assert checked == 22


@pytest.mark.parametrize(("phase", "accepted", "drafted"), [("16", 44, 54), ("62", 7372, 9340), ("14", 20, 39)])
def test_g13_draft_acceptance_is_accepted_over_drafted(phase, accepted, drafted):
    row = next(r for r in table("gb10", "mtp_counters") if r["phase"] == phase)
    counters = {row[c] for c in ("n_drafted", "n_accepted", "gen_tokens_counter", "acc_tokens_counter")}
    assert {str(accepted), str(drafted)} <= counters
    assert accepted / drafted == pytest.approx(float(row["acceptance_pct"]) / 100, abs=1e-5)
