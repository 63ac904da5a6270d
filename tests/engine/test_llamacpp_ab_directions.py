"""Scheduler A/Bs of the GB10 reference (Phases 53 to 58) move served metrics in the recorded direction.

A recorded difference counts when it exceeds the spread that repeated default runs of the same model show in that
metric. Step times come from declared priors, with the matrix rate set from the reference's batched-bench prefill, a
measurement apart from the served runs.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from sim.engine.steptime import StepTime
from sim.precision import Precision
from sim.priors import prior_rates
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from tests.engine.gb10_runs import options, served, table

MODELS = {"dense": "Qwen3.6-27B", "moe": "Qwen3.6-35B-A3B"}
PREFILL_TPS = {"dense": 1018.0, "moe": 2425.0}  # batched_bench.csv, npp 2048, npl 32, gdn_m5_base
PROMPTS = {("dense", "128"): 22913, ("dense", "32"): 5704, ("moe", "128"): 17794}
METRICS = ("wall_s", "agg_tps", "decode_agg_tps", "prefill_tps", "ttft_mean_ms", "ttft_max_ms")
SERVED = [r for r in table("serving.csv") if r["phase"] in map(str, range(52, 59)) and r["engine"] == "llama.cpp-paged"]

# 42 of 46 differences come out right. These do not: with the number of held-back decodes capped, the recorded runs
# (one each) take 2 to 4 % longer, the simulated ones 0.6 to 0.8 % less. Held-back decodes save a micro-batch of one
# token of every request (equal shares, sim.engine.steptime); a cap gives part of that back, which turns the sign of
# cap64 on the mixture of experts and not on the other two. What else a cap costs, the tables do not say: they hold no
# step times by batch.
MISSED = [
    ("57", "dense", "cap64", "wall_s"),
    ("57", "dense", "cap64", "agg_tps"),
    ("58", "moe", "min32+cap32", "wall_s"),
    ("58", "moe", "min32+cap32", "agg_tps"),
]


@functools.cache
def steps(model: str) -> StepTime:
    spec, precision = get_model(MODELS[model]), Precision("nvfp4", "bf16")
    rates = prior_rates(get_gpu("GB10"), precision, draws=2).point
    return StepTime(spec, precision, replace(rates, linear_flops_per_s=2.0 * spec.active_params * PREFILL_TPS[model]), micro_batch=512)


@functools.cache
def ours(model: str, concurrency: str, variant: str) -> dict[str, float]:
    return served(int(concurrency), PROMPTS[model, concurrency], options(variant), steps(model).iteration)[1]


def spread(model: str, metric: str) -> float:
    """Relative range of the default runs with 128 clients."""
    values = [
        float(r[metric]) for r in SERVED if r["variant"] == "default" and (r["model"], r["n_concurrent"]) == (model, "128") and r[metric]
    ]
    return max(values) / min(values) - 1.0


def test_differences_beyond_the_noise_have_their_direction_but_for_known_misses() -> None:
    told, wrong = 0, []
    for row in SERVED:
        if row["variant"] == "default":
            continue
        key = row["model"], row["n_concurrent"]
        # Phase 53 has no default run of its own; Phase 52 is the same build and workload
        phase = "52" if row["phase"] == "53" else row["phase"]
        base = next(r for r in SERVED if r["phase"] == phase and r["variant"] == "default" and (r["model"], r["n_concurrent"]) == key)
        for metric in METRICS:
            if not (row[metric] and base[metric]):
                continue
            recorded = float(row[metric]) / float(base[metric]) - 1.0
            if abs(recorded) <= spread(row["model"], metric):
                continue
            told += 1
            simulated = ours(*key, row["variant"])[metric] / ours(*key, "default")[metric] - 1.0
            if recorded * simulated <= 0:
                wrong.append((row["phase"], row["model"], row["arm"], metric))
    assert told == 46
    assert wrong == MISSED
