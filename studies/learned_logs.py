"""Rates learnt from one load of a packaged server, judged on its other loads: what holds, and whether learning widened anything.

python -m studies.learned_logs [GPU/RUN ...] [--draws N] [--json]

Each run's lowest open loop is learnt from, as `simctl learn` does; all other loads are predicted by what was known before and by what was
learnt. Of every load and metric: the share of requests inside their 90 % interval, and the width of the 5-95 % interval of the median
over the rates alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from calibrate.logs.learn import learn_rates, served_priors
from calibrate.logs.log_rates import save
from calibrate.logs.requests import ServedLog
from calibrate.measured_files import packaged_measurements, resolved
from calibrate.sampling import Settings
from calibrate.served.overhead import ServedRates, as_learnt, transferred
from calibrate.served.replay import METRICS, replay
from calibrate.served.runs import ServedRun, read_served
from calibrate.served.scores import score
from calibrate.served.validation import low_load
from sim.rates.load import load_rates
from sim.rates.serving import packaged_overhead
from simctl.text.layout import table

RUNS = (
    "h100/served_llama3.1-8b.nc", "h100/served_qwen3-14b.nc", "h100/served_mistral-24b_fp8.nc", "h200/served_gemma3-12b.nc",
    "h200/served_qwen2.5-32b.nc", "h200/served_phi-4.nc", "h200/served_qwen3-8b.nc", "h200/served_mixtral-8x7b.nc",
)  # fmt: skip
HELD, WIDER = 0.85, 1.05  # a width is wider from this ratio on: replays at few draws differ by as much
KINDS = ("open", "closed", "sessions")


def judged(run: ServedRun, settings: Settings, draws: int, folder: Path) -> Iterator[dict[str, Any]]:
    """A row for every metric of every load but the one learnt from."""
    low = low_load(run)[0]
    n = len(low.ttft_s)
    log = ServedLog(low, np.ones(n, dtype=bool), np.full(n, np.nan), run.engine)
    priors, _ = served_priors(run, log=log)
    learnt = learn_rates(run, log, priors, settings)
    path = save(folder / "learnt.nc", run, log, learnt, priors, settings)
    overhead = packaged_overhead((run.gpu.name, run.name), run.limits.engine)
    assert overhead is not None
    before = transferred(overhead.elsewhere(None), load_rates(run.deployment, draws=200))
    after = as_learnt(load_rates(run.deployment, posterior=path, draws=200))
    for load in run.experiments:
        if load.kind not in KINDS or load.replicate or load is low:
            continue
        rows = [_row(run, load, served, draws) for served in (before, after)]
        for metric in METRICS:
            (old, held), (new, now) = (row[metric] for row in rows)
            yield {"run": run.name, "gpu": run.gpu.name, "load": load.name, "metric": metric, "requests": len(load.ttft_s),
                   "held_before": held, "held": now, "width_before": old, "width": new}  # fmt: skip


def _row(run: ServedRun, load: Any, served: ServedRates, draws: int) -> dict[str, tuple[float, float]]:
    """(width of the interval of the median as a ratio, share of requests inside their intervals) by metric."""
    seen = replay(run, load, served.rates, served.host, draws=draws)
    inside = {s.metric: s.coverage for s in score(load, seen, served.overhead.noise, served.overhead.run_noise)}
    found = {}
    for metric in METRICS:
        low, high = np.quantile(np.nanmedian(seen.times[metric], axis=1), [0.05, 0.95])
        found[metric] = (float(high / low), inside[metric])
    return found


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Share of all requests inside by metric, before and after; loads that learning made wider; the median ratio of widths."""
    pool: dict[str, Any] = {}
    for metric in METRICS:
        here = [row for row in rows if row["metric"] == metric]
        total = sum(row["requests"] for row in here)
        for name in ("held_before", "held"):
            pool.setdefault(name, {})[metric] = sum(row[name] * row["requests"] for row in here) / total
    ratios = [np.log(row["width"]) / np.log(row["width_before"]) for row in rows]
    pool["narrower"] = float(np.median(ratios))
    pool["wider"] = [f"{row['run']} {row['load']} {row['metric']}" for row in rows if row["width"] > row["width_before"] * WIDER]
    pool["runs_below"] = sorted({f"{r['run']} on {r['gpu']}" for r in rows if r["held"] < HELD})
    return pool


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("runs", nargs="*", default=list(RUNS), help=f"packaged runs; {len(packaged_measurements())} files are packaged")
    parser.add_argument("--draws", type=int, default=20, help="draws that a load is replayed at")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    rows: list[dict[str, Any]] = []
    with TemporaryDirectory() as folder:
        for name in args.runs:
            found = list(judged(read_served(resolved(Path(name))), Settings(draws=600, chains=4), args.draws, Path(folder)))
            rows += found
            print(f"{name}: {len(found)} scores", file=sys.stderr)
    pool = summary(rows)
    if args.json:
        print(json.dumps({"rows": rows, "summary": pool}, indent=1))
        return 0
    cells = [
        (row["run"], row["gpu"], row["load"], row["metric"].removesuffix("_s").upper(), row["requests"],
         *(f"{100 * row[name]:.0f} %" for name in ("held_before", "held")), *(f"{row[name]:.2f}" for name in ("width_before", "width")))
        for row in rows
    ]  # fmt: skip
    print(table(("run", "gpu", "load", "metric", "n", "in 90 %", "learnt", "95%/5%", "learnt"), cells))
    for metric in METRICS:
        print(
            f"{metric.removesuffix('_s').upper()}: {pool['held_before'][metric]:.0%} in their 90 % before, {pool['held'][metric]:.0%} after"
        )
    print(f"widths after over before (log): median {pool['narrower']:.2f}; wider: {', '.join(pool['wider']) or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
