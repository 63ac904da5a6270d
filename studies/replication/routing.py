"""The routing study of eight replicas under agents, recomputed and simulated (docs/routing.md, whose runs `make routing` makes)."""

from __future__ import annotations

import csv
from collections import Counter
from importlib.resources import files
from itertools import pairwise

import numpy as np

from studies.reference_tables import table
from studies.replication.claims import Claim, compared, held, untestable

REQUESTS = 1214
BASELINE, AFFINITY, BUG, FIX, RACE = "baseline_of2.0", "A_of1.3", "AB_of1.3_lmw0.01_bug", "ABprime_of1.3_lmw0.01_fix", "ABprime_racefix"
FASTEST_FIRST = (RACE, FIX, BUG, AFFINITY, BASELINE, "v3_mechB", "v3_fixed")  # by TTFT p90, as the study ranks them
# policies as studies.replication.routing_page names them, and the published runs that they stand for
SIMULATED = {
    "baseline": BASELINE,
    "A: affinity to 1.3 x the mean": AFFINITY,
    "A+B: decodes counted, idle replicas score nought": BUG,
    "A+B: idle replicas score their prompt": FIX,
    "A+B and one step from pick to reservation": RACE,
    "baseline, KV migrates from the replica that has most": "v3_mechB",
    "baseline, KV migrates from the busiest replica": "v3_fixed",
}
RUNS = files("scenarios") / "data" / "simulated" / "routing.csv"
MEANS_MS = {AFFINITY: 3378.0, BUG: 3336.0, BASELINE: 3512.0}  # of all requests, from the means of workers or decisions


def claims() -> list[Claim]:
    """In the order of the list."""
    rows = {r["policy"]: r for r in table("routing", "policy_metrics")}
    p90 = {policy: float(r["ttft_p90_ms"]) for policy, r in rows.items()}
    return [*_sums(), _deltas(rows), _steps(p90), _order(p90), _tails(), _means(), *_simulated(p90), _hotspot()]


def _sums() -> list[Claim]:
    workers: Counter[str] = Counter()
    decisions: Counter[str] = Counter()
    for row in table("routing", "per_worker"):
        workers[row["policy"]] += int(row["n_requests"])
    for row in table("routing", "decision_split"):
        decisions[row["policy"]] += int(row["n_requests"] or 0)
    named = {name: n for name, n in decisions.items() if n}
    return [
        compared(
            name,
            f"{REQUESTS} requests by {by} of {len(sums)} policies",
            ", ".join(map(str, sums.values())),
            max(abs(n - REQUESTS) for n in sums.values()),
            0,
        )
        for name, by, sums in (("R01", "worker", workers), ("R02", "decision", named))
    ]


def _deltas(rows: dict[str, dict[str, str]]) -> Claim:
    off = []
    for row in table("routing", "reported_deltas_vs_baseline"):
        if printed := row["reported_delta_pct"]:
            ours, theirs = (float(rows[policy][f"{row['metric']}_ms"]) for policy in (row["policy"], BASELINE))
            off.append(abs(100 * (ours / theirs - 1) - float(printed)) / (0.051 if "." in printed else 0.51))  # half its last place
    return compared("R03", f"{len(off)} changes against the baseline", f"off by {max(off):.2f} of half their last place", max(off), 1)


def _steps(p90: dict[str, float]) -> Claim:
    claimed = {r["fix"].split()[0]: float(r["claimed_ttft_p90_gain_pct"]) for r in table("routing", "contribution_claims")}
    ladder = (BASELINE, AFFINITY, FIX, RACE)
    mine = [100 * (p90[a] - p90[b]) / p90[BASELINE] for a, b in pairwise(ladder)]
    off = max(abs(m - c) for m, c in zip([*mine, sum(mine)], claimed.values(), strict=True))
    said, got = (" + ".join(f"{v:.1f}" for v in values[:3]) for values in (list(claimed.values()), mine))
    return compared("R04", f"TTFT p90 gains {said} = {claimed['combined']:g} %", f"{got} = {sum(mine):.1f} %", off, 0.5)


def _order(p90: dict[str, float]) -> Claim:
    mine = sorted(p90, key=lambda policy: p90[policy])
    wrong = sum(a != b for a, b in zip(mine, FASTEST_FIRST, strict=True))
    return compared(
        "R05", f"TTFT p90 orders {len(mine)} policies", f"{mine[0]} {p90[mine[0]]:.0f} ms to {mine[-1]} {p90[mine[-1]]:.0f} ms", wrong, 0
    )


def _tails() -> Claim:
    above = {(r["policy"], int(r["ttft_threshold_ms"])): int(r["n_requests_above"]) for r in table("routing", "long_tail_counts")}
    others = [p for p, t in above if t == 5000 and p not in (BUG, RACE)]
    lost = [t for t in (5000, 10000, 20000, 30000) if above[BUG, t] >= min(above[p, t] for p in others)]
    text = ", ".join(f"{above[BUG, t]} above {t // 1000} s where another has {min(above[p, t] for p in others)}" for t in lost)
    return compared("R06", "A+B has the fewest slow requests up to 30 s", text or "at every threshold", len(lost), 0)


def _means() -> Claim:
    sums: Counter[str] = Counter()
    for row in (*table("routing", "per_worker"), *(r for r in table("routing", "decision_split") if r["policy"] == BASELINE)):
        if row["ttft_mean_ms"]:
            sums[row["policy"]] += round(int(row["n_requests"]) * float(row["ttft_mean_ms"]))
    mine = {policy: sums[policy] / REQUESTS for policy in MEANS_MS}
    off = max(abs(mine[p] / MEANS_MS[p] - 1) for p in mine)
    return compared(
        "R07",
        "mean TTFT " + ", ".join(f"{v:.0f}" for v in MEANS_MS.values()) + " ms",
        ", ".join(f"{v:.0f} ms" for v in mine.values()),
        off,
        0.05,
    )


def _hotspot() -> Claim:
    known = sorted({r["policy"] for r in table("routing", "per_worker")})
    return untestable("X08", "worker 8002 is a hot spot of the baseline, p90 35 s", f"workers were published of {', '.join(known)} alone")


def _simulated(p90: dict[str, float]) -> list[Claim]:
    """Changes of TTFT p90 against the baseline, seed by seed: a published run is one draw of workload, so each is held to single seeds."""
    rows = csv.DictReader(RUNS.read_text(encoding="utf-8").splitlines())
    runs = {(SIMULATED.get(row["policy"], ""), row["seed"]): float(row["p90_ttft_ms"]) for row in rows}
    found = []
    for i, name in enumerate(list(SIMULATED.values())[1:], 1):
        draws = np.array([100 * (ms / runs[BASELINE, seed] - 1) for (policy, seed), ms in runs.items() if policy == name])
        published = 100 * (p90[name] / p90[BASELINE] - 1)
        mine, note = [f"{draws.mean():+.1f} %"], f", mean of {draws.size} seeds"
        found.append(
            held(f"RS{i}", f"{name}: TTFT p90 {published:+.1f} %", np.array([published]), draws[None], mine, note, "simulated", "%")
        )
    return found
