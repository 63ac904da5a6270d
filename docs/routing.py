"""The published routing study, simulated: `python docs/routing.py [--seeds N] [--write]`.

Simulates every policy on the same draws of the agent workload, one run per seed. `--write` puts the figures into
scenarios/data/simulated/routing.csv and the table into docs/routing.md. All policies of a seed serve the same sessions: differences are
paired.
"""

from __future__ import annotations

import argparse
import csv
import re
import resource
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
from scipy.stats import t as student  # noqa: E402

from sim import Deployment, Workload, load_rates  # noqa: E402
from sim.rates.serving import as_served  # noqa: E402
from sim.results.metrics import summarise  # noqa: E402
from sim.study.fleet_spec import Fleet, PoolSpec  # noqa: E402
from sim.study.run import planned, run_planned  # noqa: E402
from sim.study.simulate import fleet_study  # noqa: E402
from sim.workers import cores, end_with_parent  # noqa: E402
from studies.replication.routing import SIMULATED  # noqa: E402

DATA, PAGE = ROOT / "scenarios/data/simulated/routing.csv", ROOT / "docs/routing.md"
PUBLISHED = ROOT / "scenarios/data/reference/routing/policy_metrics.csv"
FIGURES = ("median_ttft_ms", "p90_ttft_ms", "p99_ttft_ms", "p90_tpot_ms", "p90_e2el_ms", "p99_e2el_ms", "prefix_cache_hit_rate", "busiest")
RACE_S = 0.1  # from a pick until it counts, where it is not reserved in one step: the time to reach a worker and hear from it
BASE = {"overload_factor": 2.0, "decode_weight": 0.0, "idle_scores_zero": True, "reserve_s": RACE_S}
A = BASE | {"overload_factor": 1.3}
AB_BUG = A | {"decode_weight": 0.01}
AB = AB_BUG | {"idle_scores_zero": False}
RACE_FIX = AB | {"reserve_s": 0.0}
# name -> options of the unified router (None: least requests) and where KV is fetched from
POLICIES: dict[str, tuple[dict[str, Any] | None, str | None]] = {
    "baseline": (BASE, None),
    "A: affinity to 1.3 x the mean": (A, None),
    "A+B: decodes counted, idle replicas score nought": (AB_BUG, None),
    "A+B: idle replicas score their prompt": (AB, None),
    "A+B and one step from pick to reservation": (RACE_FIX, None),
    "LMetric alone, no affinity": (RACE_FIX | {"overload_factor": 0.0}, None),
    "turns forced apart: each to the fewest requests": (None, None),
    "baseline, KV migrates from the replica that has most": (BASE, "most"),
    "baseline, KV migrates from the busiest replica": (BASE, "busiest"),
}


def of_seed(seed: int) -> dict[str, dict[str, float]]:
    """Figures of one run of each policy, all of the same sessions, to six digits."""
    workload = Workload.agents(seed=seed)
    found = {policy: run(policy, workload) for policy in POLICIES}
    return {policy: {name: float(f"{figures[name]:.6g}") for name in FIGURES} for policy, figures in found.items()}


def committed() -> list[dict[str, dict[str, float]]]:
    """Figures of every seed that lie in scenarios/data/simulated/routing.csv."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    with DATA.open() as file:
        for row in csv.DictReader(file):
            found.setdefault(row["seed"], {})[row["policy"]] = {name: float(row[name]) for name in FIGURES}
    return list(found.values())


def run(policy: str, workload: Workload) -> dict[str, float]:
    """Figures of one run."""
    options, fetch = POLICIES[policy]
    router = {"router": "least-requests"} if options is None else {"router": "unified", "router_options": options}
    deployment = Deployment.of("Qwen3-Coder-30B-A3B", "H100", kv_dtype="fp8", replicas=8, max_model_len=200_000, **router)
    study = fleet_study(Fleet((PoolSpec(deployment, fetch=fetch),)), workload, lambda d: as_served(load_rates(d, draws=2)))
    record = run_planned(study, planned(study), study.workload.trace)
    replica = np.asarray(record.requests["replica"])
    busiest = np.bincount(replica[replica >= 0], minlength=8).max() / len(replica)
    return summarise(record) | {"busiest": float(busiest)}


def table(found: Sequence[dict[str, dict[str, float]]]) -> Iterator[str]:
    """The policies against the first and against each other, seed by seed, and what was published of them."""
    with PUBLISHED.open() as file:
        published = {row["policy"]: float(row["ttft_p90_ms"]) for row in csv.DictReader(file)}
    above: list[dict[str, float]] = []
    heads = ["policy", "TTFT p90, s", "against the baseline, %", "against the one above, %", "published, %"]
    yield f"| {' | '.join([*heads, 'TTFT p50, ms', 'hit ratio', 'busiest replica, %'])} |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for policy in POLICIES:
        mine = [figures[policy] for figures in found]
        means = {figure: float(np.mean([each[figure] for each in mine])) for figure in FIGURES}
        name = SIMULATED.get(policy)
        theirs = f"{100 * (published[name] / published['baseline_of2.0'] - 1):+.1f}" if above and name else ""
        against = [_change(mine, [figures["baseline"] for figures in found]), _change(mine, above)] if above else ["", ""]
        yield (
            f"| {policy} | {means['p90_ttft_ms'] / 1e3:.2f} | {against[0]} | {against[1]} | {theirs} | {means['median_ttft_ms']:.0f} | "
            f"{means['prefix_cache_hit_rate']:.3f} | {100 * means['busiest']:.1f} |"
        )
        above = mine


def _change(mine: Sequence[dict[str, float]], other: Sequence[dict[str, float]]) -> str:
    """90 % interval of the mean change of the TTFT's P90, per cent, seed by seed."""
    logs = np.log([a["p90_ttft_ms"] / b["p90_ttft_ms"] for a, b in zip(mine, other, strict=True)])
    half = float(student.ppf(0.95, len(logs) - 1) * logs.std(ddof=1) / len(logs) ** 0.5)
    return " to ".join(f"{100 * np.expm1(each):+.1f}" for each in (logs.mean() - half, logs.mean() + half))


def main() -> None:
    """Run, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    with ProcessPoolExecutor(cores(), mp_context=get_context("spawn"), initializer=end_with_parent) as workers:
        found = list(workers.map(of_seed, range(given.seeds)))
    text, used = "\n".join(table(found)), resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{text}\n\n{used.ru_utime + used.ru_stime:.0f} CPU s")
    if given.write:
        with DATA.open("w", newline="") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow(["policy", "seed", *FIGURES])
            for seed, figures in enumerate(found):
                out.writerows([policy, seed, *(f"{each[name]:.6g}" for name in FIGURES)] for policy, each in figures.items())
        page = PAGE.read_text()
        PAGE.write_text(re.sub(r"(?s)(<!-- policies -->\n).*?(<!-- /policies -->)", lambda found: found[1] + text + "\n" + found[2], page))


if __name__ == "__main__":
    main()
