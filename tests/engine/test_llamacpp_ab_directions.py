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
from tests.engine.gb10_runs import PROMPTS, in_time, options, served, table

MODELS = {"dense": "Qwen3.6-27B", "moe": "Qwen3.6-35B-A3B"}
PREFILL_TPS = {"dense": 1018.0, "moe": 2425.0}  # batched_bench.csv, npp 2048, npl 32, gdn_m5_base
METRICS = ("wall_s", "agg_tps", "decode_agg_tps", "prefill_tps", "ttft_mean_ms", "ttft_max_ms")
MOST_STARTS = 9
SERVED = [r for r in table("serving.csv") if r["phase"] in map(str, range(52, 59)) and r["engine"] == "llama.cpp-paged"]

# 44 of 46 differences come out right. A cap on held-back decodes costs wall time because those held back, the first
# slots, finish last: the slots still at work then leave a gap, and every iteration of the tail takes a micro-batch
# more. That gives all capped runs their sign but one: dense cap64 comes out at -0.1 % (-0.6 to +0.1 by its start),
# recorded is +3.7 %, one run against the fastest of five default runs, which spread by 2.4 %. What follows the last
# first token agrees in it (1.3 s longer, recorded 1.9); what comes before is 5 % shorter here and as long as by default
# there, within the spread of default runs.
MISSED = [("57", "dense", "cap64", "wall_s"), ("57", "dense", "cap64", "agg_tps")]


@functools.cache
def steps(model: str) -> StepTime:
    spec, precision = get_model(MODELS[model]), Precision("nvfp4", "bf16")
    rates = prior_rates(get_gpu("GB10"), precision, draws=2).point
    return StepTime(
        spec, precision, replace(rates, linear_flops_per_s=2.0 * spec.active_params * PREFILL_TPS[model]), micro_batch=512, streams=True
    )


@functools.cache
def run(model: str, concurrency: str, variant: str, first: int) -> dict[str, float]:
    return served(int(concurrency), PROMPTS[model, concurrency], options(variant), steps(model).iteration, first)[1]


def ours(row: dict[str, str]) -> dict[str, float]:
    """Mean over what the run's start may have been."""
    starts = in_time(row)
    runs = [run(row["model"], row["n_concurrent"], row["variant"], first) for first in starts[:: -(-len(starts) // MOST_STARTS)]]
    return {metric: sum(each[metric] for each in runs) / len(runs) for metric in METRICS}


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
        here, default = ours(row), ours(base)
        for metric in METRICS:
            if not (row[metric] and base[metric]):
                continue
            recorded = float(row[metric]) / float(base[metric]) - 1.0
            if abs(recorded) <= spread(row["model"], metric):
                continue
            told += 1
            simulated = here[metric] / default[metric] - 1.0
            if recorded * simulated <= 0:
                wrong.append((row["phase"], row["model"], row["arm"], metric))
    assert told == 46
    assert wrong == MISSED
