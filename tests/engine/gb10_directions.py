"""Which differences between scheduler variants the GB10 reference shows beyond its own repeats, and what comes out here.

Every variant is a single run. So its difference is taken against the mean of all default runs of the same model and
number of clients (five dense, four of the mixture of experts, Phases 52 to 59), and it counts as recorded when it
exceeds what those defaults differ among themselves: their range, largest over smallest less one, in that metric. With 32
clients there is one default run, and the range is that of 128 clients. `python -m tests.engine.gb10_directions` prints
all of them, beside the same against the one default run of the variant's own phase, and whether a default run of its own
would lie so far out in fewer than 1 of 20 cases (Student's t, the defaults' scatter).

Step times come from declared priors, with the matrix rate set from the reference's batched-bench prefill, a measurement
apart from the served runs.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from statistics import mean, stdev

from sim.engine.iteration_cost import IterationCost
from sim.rates.priors import prior_rates
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.specs.precision import Precision
from studies.replication.gb10_runs import PROMPTS, options, served, table
from tests.examples import ALL

MODELS = {"dense": "Qwen3.6-27B", "moe": "Qwen3.6-35B-A3B"}
PREFILL_TPS = {"dense": 1018.0, "moe": 2425.0}  # batched_bench.csv, npp 2048, npl 32, gdn_m5_base
METRICS = ("wall_s", "agg_tps", "decode_agg_tps", "prefill_tps", "ttft_mean_ms", "ttft_max_ms")
MOST_STARTS, EACH = (9, 1) if ALL else (3, 4)  # starts that are averaged over, and that are tried: every one, or each fourth, 32 among them
TRACED = range(28, 37)  # in time for the first iteration
SERVED = [r for r in table("serving.csv") if r["phase"] in map(str, range(52, 60)) and r["engine"] == "llama.cpp-paged"]
DEFAULTS = [row for row in SERVED if row["variant"] == "default"]
VARIANTS = [row for row in SERVED if row["variant"] != "default" and row["phase"] != "59"]
Row = dict[str, str]


@functools.cache
def _starts(n: int, prompts: int, variant: str, recorded: int) -> list[int]:
    settings = options(variant)
    counts = (
        (first, served(n, prompts, settings, first=first, to_the_end=False)[0].ttft_deferred_decode_slots)
        for first in range(EACH, n + 1, EACH)
    )
    return [first for first, count in counts if abs(count - recorded) <= 1]


def in_time(row: dict[str, str]) -> list[int]:
    """Numbers of requests that may have been in slots at the first decision of a served run: all numbers that reproduce its
    count of held-back decodes to one, or those of the traces where it held none back; empty when no number does.
    """
    n, prompts = int(row["n_concurrent"]), PROMPTS[row["model"], row["n_concurrent"]]
    if not int(row["deferred_decode_slots"] or 0):
        return [min(first, n) for first in TRACED]
    return _starts(n, prompts, row["variant"], int(row["deferred_decode_slots"]))


@dataclass(frozen=True)
class Difference:
    """One metric of one variant against the default, as shares of the default's."""

    phase: str
    model: str
    clients: str
    variant: str
    metric: str
    recorded: float  # against the mean of the default runs
    repeats: float  # range of the default runs
    interval: float  # half-width of the 95 % interval of one more default run about their mean
    own_phase: float  # against the default run of the same phase
    simulated: float

    @property
    def counts(self) -> bool:
        """Whether it is recorded beyond the repeats."""
        return abs(self.recorded) > self.repeats

    @property
    def right(self) -> bool:
        """Whether it comes out in the recorded direction."""
        return self.recorded * self.simulated > 0

    @property
    def counts_in_its_phase(self) -> bool:
        """The same against the one default run of its phase."""
        return abs(self.own_phase) > self.repeats

    @property
    def right_in_its_phase(self) -> bool:
        """Whether it comes out in the direction of that comparison."""
        return self.own_phase * self.simulated > 0


@functools.cache
def steps(model: str) -> IterationCost:
    """Step times of the served model on a GB10."""
    spec, precision = get_model(MODELS[model]), Precision("nvfp4", "bf16")
    rates = prior_rates(get_gpu("GB10"), precision, draws=2).point
    return IterationCost(
        spec, precision, replace(rates, linear_flops_per_s=2.0 * spec.active_params * PREFILL_TPS[model]), micro_batch=512, streams=True
    )


@functools.cache
def run(model: str, clients: str, variant: str, first: int) -> dict[str, float]:
    """Served metrics with `first` requests in slots at the first decision."""
    return served(int(clients), PROMPTS[model, clients], options(variant), lambda iteration: steps(model)(iteration).ticks, first)[1]


def ours(row: Row) -> dict[str, float]:
    """Mean over what the run's start may have been."""
    starts = in_time(row)
    runs = [run(row["model"], row["n_concurrent"], row["variant"], first) for first in starts[:: -(-len(starts) // MOST_STARTS)]]
    return {metric: mean(each[metric] for each in runs) for metric in METRICS}


def defaults(model: str, clients: str, metric: str) -> list[float]:
    """The metric in all default runs of a model with so many clients."""
    return [float(row[metric]) for row in DEFAULTS if (row["model"], row["n_concurrent"]) == (model, clients) and row[metric]]


@functools.cache
def differences() -> tuple[Difference, ...]:
    """All metrics of all variants that the reference records."""
    from scipy.stats import t

    found = []
    for row in VARIANTS:
        key = row["model"], row["n_concurrent"]
        # Phase 53 has no default run of its own; Phase 52 is the same build and workload
        phase = "52" if row["phase"] == "53" else row["phase"]
        own = next(each for each in DEFAULTS if each["phase"] == phase and (each["model"], each["n_concurrent"]) == key)
        here, default = ours(row), ours(own)
        for metric in METRICS:
            if not (row[metric] and own[metric]):
                continue
            alike, repeats = defaults(*key, metric), defaults(key[0], "128", metric)
            found.append(
                Difference(
                    row["phase"],
                    *key,
                    (row["arm"] or row["variant"]).replace("LLAMA_", "").replace("TTFT_PREFILL_FIRST=1", "prefill-first"),
                    metric,
                    float(row[metric]) / mean(alike) - 1.0,
                    max(repeats) / min(repeats) - 1.0,
                    float(t.ppf(0.975, len(repeats) - 1)) * stdev(repeats) / mean(repeats) * (1.0 + 1.0 / len(alike)) ** 0.5,
                    float(row[metric]) / float(own[metric]) - 1.0,
                    here[metric] / default[metric] - 1.0,
                )
            )
    return tuple(found)


def report() -> str:
    """The table of all differences and the counts, in percent."""
    found = differences()
    head = f"{'':51s}{'':15s} recorded repeats  95 %  own phase   here"
    lines = [head]
    for each in found:
        name = f"{each.phase} {each.model} {each.clients} {each.variant}"
        figures = f"{100 * each.recorded:+8.1f}{100 * each.repeats:8.1f}{100 * each.interval:6.1f}{100 * each.own_phase:+11.1f}"
        verdict = ("right" if each.right else "WRONG") if each.counts else "within the repeats"
        if each.counts_in_its_phase and not each.right_in_its_phase:
            verdict += ", WRONG against its own phase"
        lines.append(f"{name:52s}{each.metric:15s}{figures}{100 * each.simulated:+7.1f}  {verdict}")
    for told, right, rule in (
        ([e for e in found if e.counts], lambda e: e.right, "beyond the range of the default runs, against their mean"),
        ([e for e in found if abs(e.recorded) > e.interval], lambda e: e.right, "outside the 95 % interval of one more default run"),
        ([e for e in found if e.counts_in_its_phase], lambda e: e.right_in_its_phase, "beyond that range, against one default run"),
    ):
        lines.append(f"{sum(map(right, told))} of {len(told)} of {len(found)} right: {rule}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(report())
