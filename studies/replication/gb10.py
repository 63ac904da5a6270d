"""The GB10 report: two engines serving a dense model and a mixture of experts, admission traces, kernels, speculative decoding."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from studies.reference_tables import Row, table
from studies.replication import gb10_predicted
from studies.replication.claims import Claim, compared, untestable
from studies.replication.gb10_runs import options, served

PREFILL_FIRST = "LLAMA_TTFT_PREFILL_FIRST=1"
DENSE_PROMPTS = 22913  # tokens of 128 prompts
PHASES_OF_RATIOS = ("20", "26", "40", "41", "47")
SCHEDULERS = {
    ("55", "dense", "128"): "prefill_first vs default",
    ("56", "moe", "128"): "prefill_first vs default",
    ("56", "dense", "32"): "prefill_first vs default",
    ("59", "moe", "128"): "min32 vs default",
}
# tok/s of the two kernels that each reported change of `w4a16_reported_deltas` compares, in its order
W4A16 = (
    (1308.92, 2306.06),
    (1332.98, 2423.0),
    (1314.08, 1308.92),
    (1339.39, 1332.98),
    (1314.08, 2303.07),
    (1339.39, 2423.23),
    (1442.99, 1308.02),
    (1475.65, 1339.46),
    (1466.62, 1442.28),
    (1495.93, 1471.77),
    None,
    None,
    (1566.30, 1471.05),
    (1605.82, 1502.46),
)
ROUTED = {
    ("34", "MUL_MAT_ID route"): 4096,
    ("35", "MUL_MAT route"): 8192,
    ("36", "cuBLAS subroute"): 8192,
    ("37", "cuBLAS subroute (named)"): 4096,
}


def claims() -> list[Claim]:
    """In the order of the list."""
    found = [*_throughputs(), *_admission(), *_reported(), *_speculation(), *_kernels(), *_steps(), *gb10_predicted.claims()]
    return sorted(found, key=lambda c: c.name)


def _worst(values: Iterable[float]) -> float:
    return max(abs(v) for v in values)


def _rows(**where: str) -> list[Row]:
    return [r for r in table("gb10", "serving") if all(r[k] == v for k, v in where.items())]


def _throughputs() -> list[Claim]:
    true = table("gb10", "decode_difference_method")
    difference = _worst(float(r["delta_tokens"]) / float(r["delta_wall_s"]) - float(r["true_decode_tps"]) for r in true)
    walls = [r for r in table("gb10", "serving") if r["wall_s"] and r["agg_tps"] and r["gen_tokens"] and r["engine"] != "vllm"]
    timed = [r for r in walls if r["ttft_max_ms"]]
    prompts = [r for r in timed if r["prompt_tokens_total"]]

    def made(row: Row) -> float:
        return float(row["n_concurrent"]) * float(row["gen_tokens"])

    whole = _worst(made(r) / float(r["wall_s"]) / float(r["agg_tps"]) - 1 for r in walls)
    after = _worst(made(r) / (float(r["wall_s"]) - float(r["ttft_max_ms"]) / 1e3) / float(r["decode_agg_tps"]) - 1 for r in timed)
    before = _worst(float(r["prompt_tokens_total"]) / float(r["ttft_max_ms"]) * 1e3 / float(r["prefill_tps"]) - 1 for r in prompts)
    implied = [
        float(r["implied_prompt_tokens_per_request"])
        for r in table("gb10", "derived_serving_identities")
        if r["implied_prompt_tokens_per_request"] and r["ptok_arg_tokens"] == "128" and int(r["n_concurrent"]) >= 8
    ]
    vllm = _rows(phase="59", engine="vllm", model="moe", n_concurrent="128")[0]
    tokens = float(vllm["agg_tps"]) * float(vllm["wall_s"])
    return [
        compared("G01", f"{len(true)} decode rates by difference of two lengths", f"off by {difference:.2g} tok/s", difference, 0.011),
        compared("G02", f"{len(walls)} aggregate rates are tokens over wall time", f"off by {whole:.2%}", whole, 1e-3),
        compared(
            "G03",
            f"{len(timed)} decode rates count from the last first token",
            f"off by {after:.2%}; tokens before it are counted, too",
            after,
            1e-3,
        ),
        compared("G04", f"{len(prompts)} prefill rates are prompts over the last TTFT", f"off by {before:.3%}", before, 1e-3),
        compared(
            "G05", "prompts of 128 tokens", f"{min(implied):.0f} to {max(implied):.0f} tokens", _worst(v / 128 - 1 for v in implied), 0.05
        ),
        compared("G20", "vLLM generated 8192 tokens", f"{tokens:.0f}: some stopped early", abs(tokens / 8192 - 1), 5e-3),
    ]


def _admission() -> list[Claim]:
    totals: Counter[tuple[str, str, str]] = Counter()
    for row in table("gb10", "admission_hist"):
        totals[row["phase"], row["variant"], row["histogram"]] += int(row["steps_count"])
    trace = next(r for r in table("gb10", "admission_trace") if r["phase"] == "52")
    said = {r["metric"]: float(r["value"]) for r in table("gb10", "admission_derived_reported") if r["phase"] == "52"}
    per_step = {
        of: int(trace[f"{of}{end}"]) / int(trace["steps"])
        for of, end in (("decode_tokens", ""), ("waiting_prompt_slots", "_sum"), ("prompt_tokens", ""))
    }
    off = _worst(value - said[f"avg_{of}_per_step"] for of, value in per_step.items())
    ours, _ = served(128, DENSE_PROMPTS, options(PREFILL_FIRST))
    full, rest = sum(t == 2048 for t in ours.prompt_tokens_per_step), [t for t in ours.prompt_tokens_per_step if 0 < t < 2048]
    bins = sorted(rest)
    fits = full == 11 and len(bins) == 2 and 1 <= bins[0] <= 64 and 257 <= bins[1] <= 512 and ours.decode_only_steps == 63
    deferred = next(int(r["ttft_deferred_decode_slots"]) for r in table("gb10", "admission_trace") if r["variant"] == PREFILL_FIRST)
    return [
        compared(
            "G06",
            f"{len(totals)} histograms of 76 steps",
            f"{sum(n == 76 for n in totals.values())} of them",
            _worst(n - 76 for n in totals.values()),
            0,
        ),
        compared("G07", "tokens and slots per step of a dense run", ", ".join(f"{v:.2f}" for v in per_step.values()), off, 0.011),
        compared(
            "G08",
            "prefill first: 11 full steps, one of 257-512, one of 1-64, 63 decodes",
            f"{full} full, {bins[-1]}, {bins[0]}, {ours.decode_only_steps} decodes",
            0 if fits else 1,
            0,
            "simulated",
        ),
        compared(
            "G09",
            f"{deferred} decodes held back",
            f"{ours.ttft_deferred_decode_slots}",
            abs(ours.ttft_deferred_decode_slots / deferred - 1),
            0.15,
            "simulated",
        ),
        compared(
            "G10",
            "no step of decodes only",
            f"{ours.decode_only_steps}, as its own histogram has",
            ours.decode_only_steps,
            0,
            "simulated",
        ),
    ]


def _reported() -> list[Claim]:
    rows = {(r["phase"], r["engine"], r["model"], r["n_concurrent"]): r for r in table("gb10", "serving")}
    columns = {"decode_agg": "decode_agg_tps", "decode_per_seq": "decode_per_seq_tps", "agg": "agg_tps", "ttft_mean": "ttft_mean_ms"}
    ratios = []
    for row in table("gb10", "reported_ratios"):
        if row["phase"] in PHASES_OF_RATIOS:
            column = columns[re.sub(r"(_tps)?_(ratio|pct|x)$", "", row["metric"])]
            top, bottom = (float(rows[row["phase"], e, row["model"], row["n_concurrent"]][column]) for e in ("llama.cpp-paged", "vllm"))
            unit = 10.0 ** -len(row["value"].partition(".")[2])
            ratios.append((top / bottom * (100 if row["metric"].endswith("pct") else 1) - float(row["value"])) / unit)
    changes = []
    for (phase, model, n), comparison in SCHEDULERS.items():
        served_rows = [r for r in _rows(phase=phase, model=model, n_concurrent=n) if r["engine"] != "vllm"]
        before, after = (next(r for r in served_rows if (r["variant"] == "default") is default) for default in (True, False))
        for row in table("gb10", "scheduler_reported_deltas"):
            if (row["phase"], row["model"], row["n_concurrent"], row["comparison"]) == (phase, model, n, comparison):
                column = {"ttft_mean": "ttft_mean_ms", "ttft_max": "ttft_max_ms", "wall": "wall_s"}.get(row["metric"], row["metric"])
                changes.append((float(after[column]) / float(before[column]) - 1) * 100 - float(row["reported_delta_pct"]))
    w4a16 = [
        (a / b - 1) * 100 - float(row["reported_delta_pct"])
        for (a, b), row in ((pair, row) for pair, row in zip(W4A16, _of_kernels(), strict=True) if pair)
    ]
    return [
        compared(
            "G11", f"{len(ratios)} ratios of the two engines", f"off by {_worst(ratios):.2f} of their last place", _worst(ratios), 0.51
        ),
        compared("G12", f"{len(changes)} changes by the scheduler", f"off by {_worst(changes):.2f} points", _worst(changes), 0.051),
        compared("G19", f"{len(w4a16)} changes by W4A16 kernels", f"off by {_worst(w4a16):.2f} points", _worst(w4a16), 0.1),
    ]


def _of_kernels() -> list[Row]:
    """Changes that are printed in per cent."""
    return [r for r in table("gb10", "w4a16_reported_deltas") if r["reported_delta_pct"]]


def _speculation() -> list[Claim]:
    printed = {"16": (44, 54, 0.81481), "62": (7372, 9340, 0.78929), "14": (20, 39, 0.51282)}
    off = _worst(accepted / drafted - share for accepted, drafted, share in printed.values())
    ratios: dict[int, list[float]] = {8: [], 32: [], 128: []}
    for phase in ("15", "19", "62"):
        for n, seen in ratios.items():
            rows = _rows(phase=phase, n_concurrent=str(n))
            seen.append(float(rows[1]["decode_agg_tps"]) / float(rows[0]["decode_agg_tps"]))
    falls = min(ratios[8]) > max(ratios[32]) and min(ratios[32]) > max(ratios[128])
    text = ", ".join(f"{min(v):.2f} to {max(v):.2f} at {n}" for n, v in ratios.items())
    return [
        compared("G13", "drafts accepted: " + ", ".join(f"{s:.1%}" for *_, s in printed.values()), f"off by {off:.1g}", off, 1e-5),
        compared("G14", "with drafts decodes lose more, the more clients", f"{text} of those without", 0 if falls else 1, 0),
    ]


def _kernels() -> list[Claim]:
    scratch = table("gb10", "gdn_ai_scratch")
    heads = {"moe": 32, "dense": 48}
    mine = {r["model"]: int(r["npp_tokens"]) * int(r["npl"]) * int(r["bt"]) * heads[r["model"]] * 4 / 2**20 for r in scratch}
    buckets = [r for r in table("gb10", "kernel_buckets") if r["phase"] == "27" and r["time_ms"] and r["share_pct"]]
    shares = _worst(float(r["time_ms"]) / 200.372 - float(r["share_pct"]) for r in buckets)
    bench = [r for r in table("gb10", "batched_bench") if r["t_pp_s"] and r["s_pp_tps"]]
    rates = _worst(int(r["npp_tokens"]) * int(r["npl_batch"]) / float(r["t_pp_s"]) / float(r["s_pp_tps"]) - 1 for r in bench)
    calls: Counter[tuple[str, str]] = Counter()
    for row in table("gb10", "route_counts"):
        calls[row["phase"], row["trace"]] += int(row["calls_count"])
    return [
        compared(
            "G15",
            "256 MiB of scratch (MoE), 384 (dense)",
            ", ".join(f"{v:g} MiB" for v in mine.values()),
            _worst(mine[r["model"]] - float(r["ai_scratch_mib"]) for r in scratch),
            0,
        ),
        compared("G16", f"shares of {len(buckets)} kernels", f"off by {shares:.3f} points", shares, 0.011),
        compared("G17", f"{len(bench)} prefill rates of the batched bench", f"off by {rates:.3%}", rates, 5e-4),
        compared(
            "G18",
            "traces of 4096, 8192, 8192, 4096 calls",
            ", ".join(str(calls[key]) for key in ROUTED),
            _worst(calls[k] - n for k, n in ROUTED.items()),
            0,
        ),
    ]


def _steps() -> list[Claim]:
    true = {
        (r["model"], r["engine"]): (int(r["npl_batch"]), float(r["true_decode_tps"])) for r in table("gb10", "decode_difference_method")
    }
    first = next(r for r in _rows(phase="55", model="dense", n_concurrent="128") if r["variant"] == PREFILL_FIRST)
    step_ms = (float(first["wall_s"]) - float(first["ttft_max_ms"]) / 1e3) / 63 * 1e3
    bench_ms = 128 / true["dense", "llama.cpp-paged"][1] * 1e3
    both = [true["moe", engine][0] / true["moe", engine][1] * 1e3 for engine in ("llama.cpp-paged", "vllm")]
    return [
        compared(
            "G21",
            f"a dense step of 128 takes {bench_ms:.0f} ms in the bench",
            f"{step_ms:.0f} ms as served",
            abs(step_ms / bench_ms - 1),
            0.20,
        ),
        compared(
            "G22",
            "a step of 256 takes 279.6 ms (llama.cpp), 237.8 (vLLM)",
            ", ".join(f"{v:.1f} ms" for v in both),
            max(abs(both[0] / 279.6 - 1), abs(both[1] / 237.8 - 1)),
            0.02,
        ),
        untestable("X03", "657 tok/s at 128 clients, later 412 to 418, later 670 to 705", "nothing says what changed between those runs"),
    ]
