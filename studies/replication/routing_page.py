"""The published routing study, simulated: `python -m studies.replication.routing_page [--seeds N] [--write]`.

Simulates every policy on the same draws of agents' sessions, one run per seed. `--write` puts the figures into
scenarios/data/simulated/routing.csv, the tables into docs/routing.md and the picture into docs/img/routing.png. All policies of a seed
serve the same sessions: differences are paired.
"""

from __future__ import annotations

import argparse
import csv
import re
import resource
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student

from sim import Deployment, Workload, load_rates
from sim.cluster.policies import AFFINITY, FALLBACK
from sim.cost.rates import RateDraws
from sim.rates.serving import as_served
from sim.results.metrics import summarise
from sim.results.record import RunRecord
from sim.study.fleet_spec import (
    LINKS,
    Fleet,
    PoolSpec,
)
from sim.study.run import planned, run_pools
from sim.study.simulate import fleet_study
from sim.workers import cores, end_with_parent
from sim.workload.agent_sessions import AgentSessions, draw_sessions
from studies.reference_tables import table as published_table
from studies.replication.routing import BASELINE, REQUESTS, SIMULATED
from studies.replication.routing_picture import draw_study

ROOT = Path(__file__).resolve().parents[2]
DATA, PAGE = ROOT / "scenarios/data/simulated/routing.csv", ROOT / "docs/routing.md"
PICTURE = ROOT / "docs/img/routing.png"
ABOVE_S = (5, 10, 20, 30, 50)  # thresholds of TTFT whose counts were published
FIGURES = (
    "median_ttft_ms", "p90_ttft_ms", "p99_ttft_ms", "p90_tpot_ms", "p90_e2el_ms", "p99_e2el_ms", "prefix_cache_hit_rate", "busiest",
    *(f"above_{each}_s" for each in ABOVE_S), "fallback", "fallback_p90_ttft_ms", "affinity_p90_ttft_ms",
)  # fmt: skip
SEEDS = 12
# Sessions of this study: means fitted to its counts above 5 to 50 s, to half of the prompt tokens in cache, and to the split of its
# decisions, by other seeds. Sessions share no system prompt: the published router's affinity is to a session, and a first turn has none.
SESSIONS = AgentSessions(
    prefix_tokens=0, opening_tokens=24_000, input_tokens=2200, output_tokens=180, edited_share=0.48, longest_opening=190_000
)
# Prompts there took longer than our rates say: cold ones of 100,000 to 130,000 tokens 20 to 30 s (routing/worker8007_profile.csv), one of
# 115,000 here 10.6 s. Not fitted.
SLOWER_PROMPTS = 25.0 / 10.6
OF_PROMPTS = ("attention_flops_per_s", "linear_flops_per_s", "expert_flops_per_s")
RACE_S = 0.1  # from a pick until it counts, where it is not reserved in one step: the time to reach a worker and hear from it
BASE = {"overload_factor": 2.0, "decode_weight": 0.0, "idle_scores_zero": True, "reserve_s": RACE_S}
A = BASE | {"overload_factor": 1.3}
AB_BUG = A | {"decode_weight": 0.01}
AB = AB_BUG | {"idle_scores_zero": False}
RACE_FIX = AB | {"reserve_s": 0.0}
# name -> options of the unified router (None: least requests), where KV is fetched from, and over which link
POLICIES: dict[str, tuple[dict[str, Any] | None, str | None, str]] = {
    "baseline": (BASE, None, "rdma-400"),
    "A: affinity to 1.3 x the mean": (A, None, "rdma-400"),
    "A+B: decodes counted, idle replicas score nought": (AB_BUG, None, "rdma-400"),
    "A+B: idle replicas score their prompt": (AB, None, "rdma-400"),
    "A+B and one step from pick to reservation": (RACE_FIX, None, "rdma-400"),
    "LMetric alone, no affinity": (RACE_FIX | {"overload_factor": 0.0}, None, "rdma-400"),
    "turns forced apart: each to the fewest requests": (None, None, "rdma-400"),
    "baseline, KV migrates from the replica that has most": (BASE, "most", "rdma-400"),
    "baseline, KV migrates from the busiest replica": (BASE, "busiest", "rdma-400"),
    "the same, from the one that has most, at 3.1 GB/s": (BASE, "most", "ethernet-25"),
    "the same at 1.25 GB/s": (BASE, "most", "ethernet-10"),
    "the same at 0.3 GB/s": (BASE, "most", "0.3"),
}


def of_seed(seed: int) -> dict[str, dict[str, float]]:
    """Figures of one run of each policy, all of the same sessions, to six digits."""
    workload = sessions(seed)
    found = {policy: run(policy, workload) for policy in POLICIES}
    return {policy: {name: float(f"{figures[name]:.6g}") for name in FIGURES} for policy, figures in found.items()}


def sessions(seed: int) -> Workload:
    """The sessions of a seed."""
    return Workload(draw_sessions(SESSIONS, np.random.default_rng(seed)))


def study_rates(deployment: Deployment) -> Any:
    """Rates and host latencies as served, with prompts as slow as the study's."""
    rates, host = as_served(load_rates(deployment, draws=2))
    point = replace(rates.point, **{name: getattr(rates.point, name) / SLOWER_PROMPTS for name in OF_PROMPTS})
    return RateDraws(point, point, rates.sources, rates.source), host


def committed() -> list[dict[str, dict[str, float]]]:
    """Figures of every seed that lie in scenarios/data/simulated/routing.csv."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    with DATA.open() as file:
        for row in csv.DictReader(file):
            found.setdefault(row["seed"], {})[row["policy"]] = {name: float(row[name]) for name in FIGURES}
    return list(found.values())


def run(policy: str, workload: Workload) -> dict[str, float]:
    """Figures of one run."""
    options, fetch, link = POLICIES[policy]
    router = {"router": "least-requests"} if options is None else {"router": "unified", "router_options": options}
    deployment = Deployment.of("Qwen3-Coder-30B-A3B", "H100", kv_dtype="fp8", replicas=8, max_model_len=200_000, **router)
    pool = PoolSpec(deployment, fetch=fetch, bytes_per_s=LINKS[link] if link in LINKS else 1e9 * float(link))
    study = fleet_study(Fleet((pool,)), workload, study_rates)
    record = run_pools(study, planned(study), study.workload.trace)
    return summarise(record) | tails(record)


def tails(record: RunRecord) -> dict[str, float]:
    """Requests above ABOVE_S, of 1,214; share of the busiest replica and of decisions that fell back, and the TTFT's P90 by decision."""
    seen = record.requests
    replica, ttft = np.asarray(seen["replica"]), np.asarray(seen["first_token_s"]) - np.asarray(seen["arrival_s"])
    names = record.decision_names
    fell = np.asarray(seen["decision"]) == (names.index(FALLBACK) if FALLBACK in names else -1)
    found = {f"above_{each}_s": float(REQUESTS * np.mean(ttft > each)) for each in ABOVE_S}
    for name, those in ((FALLBACK, fell), (AFFINITY, ~fell)):
        found[f"{name}_p90_ttft_ms"] = float(1e3 * np.quantile(ttft[those], 0.9)) if those.any() else 0.0
    return found | {"busiest": float(np.bincount(replica[replica >= 0], minlength=8).max() / len(replica)), "fallback": float(fell.mean())}


def table(found: Sequence[dict[str, dict[str, float]]]) -> Iterator[str]:
    """The policies against the first and against each other, seed by seed, and what was published of them."""
    published = {row["policy"]: float(row["ttft_p90_ms"]) for row in published_table("routing", "policy_metrics")}
    above: list[dict[str, float]] = []
    heads = ["policy", "TTFT p90, s", "against the baseline, %", "against the one above, %", "published, %"]
    yield f"| {' | '.join([*heads, 'TTFT p50, ms', 'hit ratio', 'busiest replica, %'])} |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for policy in POLICIES:
        mine = [figures[policy] for figures in found]
        means = {figure: float(np.mean([each[figure] for each in mine])) for figure in FIGURES}
        name = SIMULATED.get(policy)
        theirs = f"{100 * (published[name] / published[BASELINE] - 1):+.1f}" if above and name else ""
        against = [_change(mine, [figures["baseline"] for figures in found]), _change(mine, above)] if above else ["", ""]
        yield (
            f"| {policy} | {means['p90_ttft_ms'] / 1e3:.2f} | {against[0]} | {against[1]} | {theirs} | {means['median_ttft_ms']:.0f} | "
            f"{means['prefix_cache_hit_rate']:.3f} | {100 * means['busiest']:.1f} |"
        )
        above = mine


def tail_table(found: Sequence[dict[str, dict[str, float]]]) -> Iterator[str]:
    """What was published of the baseline's slow requests and decisions, beside the mean and the 5-95 % range of single runs."""
    published = {
        f"above_{int(row['ttft_threshold_ms']) // 1000}_s": float(row["n_requests_above"])
        for row in published_table("routing", "long_tail_counts")
        if row["policy"] == BASELINE
    }
    for row in published_table("routing", "decision_split"):
        if row["policy"] == BASELINE:
            name = AFFINITY if row["decision"] == "affinity" else FALLBACK
            published[f"{name}_p90_ttft_ms"] = float(row["ttft_p90_ms"])
            if name == FALLBACK:
                published["fallback"] = float(row["n_requests"]) / REQUESTS
    words = {f"above_{each}_s": f"requests above {each} s" for each in ABOVE_S}
    words |= {"fallback": "decisions that fell back, %"} | {f"{n}_p90_ttft_ms": f"TTFT p90 of {n}, s" for n in (AFFINITY, FALLBACK)}
    yield "| baseline | published | simulated, mean | 5-95 % of runs |"
    yield "| --- | --- | --- | --- |"
    for name, text in words.items():
        runs = np.array([each["baseline"][name] for each in found]) * (100 if name == "fallback" else 1e-3 if name.endswith("_ms") else 1)
        scale = 100 if name == "fallback" else 1e-3 if name.endswith("_ms") else 1
        low, high = np.quantile(runs, [0.05, 0.95])
        yield f"| {text} | {published[name] * scale:.3g} | {runs.mean():.3g} | {low:.3g} - {high:.3g} |"


def _change(mine: Sequence[dict[str, float]], other: Sequence[dict[str, float]]) -> str:
    return " to ".join(f"{each:+.1f}" for each in change(mine, other))


def change(mine: Sequence[dict[str, float]], other: Sequence[dict[str, float]]) -> tuple[float, float]:
    """90 % interval of the mean change of the TTFT's P90, per cent, seed by seed."""
    logs = np.log([a["p90_ttft_ms"] / b["p90_ttft_ms"] for a, b in zip(mine, other, strict=True)])
    half = float(student.ppf(0.95, len(logs) - 1) * logs.std(ddof=1) / len(logs) ** 0.5)
    return 100 * float(np.expm1(logs.mean() - half)), 100 * float(np.expm1(logs.mean() + half))


def main() -> None:
    """Run, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    with ProcessPoolExecutor(cores(), mp_context=get_context("spawn"), initializer=end_with_parent) as workers:
        found = list(workers.map(of_seed, range(given.seeds)))
    blocks, used = {"policies": table(found), "tail": tail_table(found)}, resource.getrusage(resource.RUSAGE_CHILDREN)
    texts = {name: "\n".join(lines) for name, lines in blocks.items()}
    print("\n\n".join([*texts.values(), f"{used.ru_utime + used.ru_stime:.0f} CPU s"]))
    if given.write:
        with DATA.open("w", newline="") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow(["policy", "seed", *FIGURES])
            for seed, figures in enumerate(found):
                out.writerows([policy, seed, *(f"{each[name]:.6g}" for name in FIGURES)] for policy, each in figures.items())
        page = PAGE.read_text()
        for name, text in texts.items():
            pattern = rf"(?s)(<!-- {name} -->\n).*?(<!-- /{name} -->)"
            page = re.sub(pattern, lambda marks, text=text: f"{marks[1]}{text}\n{marks[2]}", page)  # type: ignore[misc]
        PAGE.write_text(page)
        draw_study(found, PICTURE)


if __name__ == "__main__":
    main()
