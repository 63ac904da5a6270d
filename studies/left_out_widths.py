"""What makes the intervals of hosts never seen wide: coverage and width with and without what hosts differ by.

    python -m studies.left_out_widths [EVERY]

Loads of every EVERY-th packaged served run (4) are predicted by other hosts' overhead: on a host of any provider, as answers are; on one
like those measured, all of one provider; and on their median host. Nothing of the run or of its model's kind is learnt from.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from calibrate.measured_files import served_files
from calibrate.served.left_out import LEAST_REQUESTS, kind_of_run
from calibrate.served.replay import METRICS, replay
from calibrate.served.runs import by_plugin, read_served
from calibrate.served.scores import score
from sim.rates.kinds import packaged_seen, without
from sim.rates.load import load_rates
from sim.rates.serving import ServingOverhead, packaged_overhead
from simctl.text.layout import table
from studies.program import program

EVERY, DRAWS, MOST_LOADS = 4, 20, 3


class Width(NamedTuple):
    """A load on one sort of host: share of requests inside their 90 % interval [TTFT, TPOT, E2EL], error of its median E2EL (log), and the
    log sd over draws.
    """

    kind: str
    hosts: str
    inside: tuple[float, ...]
    off: float
    sd: float


def widths(path: Path) -> Iterator[Width]:
    """The first loads of a run."""
    run = read_served(path)
    if by_plugin(run):
        return
    known = load_rates(run.deployment, seen=without(run.deployment, packaged_seen()))
    overhead = packaged_overhead((run.gpu.name, run.name))
    assert overhead is not None
    loads = [e for e in run.experiments if e.kind != "ladder" and not e.replicate and len(e.ttft_s) >= LEAST_REQUESTS][:MOST_LOADS]
    for hosts, on in _sorts(overhead).items():
        served, host = on.applied(known), on.host(known)
        for load in loads:
            seen = replay(run, load, served, host, draws=DRAWS)
            by_metric = {s.metric: s for s in score(load, seen, overhead.noise, overhead.run_noise)}
            sd = float(np.std(np.log(np.nanmedian(seen.times["e2el_s"], axis=1))))
            inside = tuple(by_metric[metric].coverage for metric in METRICS)
            yield Width(kind_of_run(run) or "host", hosts, inside, float(np.log1p(by_metric["e2el_s"].bias)), sd)


def _sorts(overhead: ServingOverhead) -> dict[str, ServingOverhead]:
    median = replace(overhead, launch_sd=0.0, work_sd=0.0, hidden_c0_sd_s=0.0)
    return {"any provider": overhead.elsewhere(None), "as measured": overhead, "their median": median}


def summary(rows: Sequence[Width]) -> str:
    """By kind of serving and sort of host; all kinds last."""
    lines = []
    for kind in (*sorted({row.kind for row in rows}), "all"):
        for hosts in dict.fromkeys(row.hosts for row in rows):
            own = [row for row in rows if row.hosts == hosts and kind in (row.kind, "all")]
            shares = "/".join(f"{100 * each:.0f}" for each in np.mean([row.inside for row in own], axis=0))
            off, sd = (f"{100 * np.sqrt(np.mean(np.square(values))):.1f}" for values in ([r.off for r in own], [r.sd for r in own]))
            lines.append((kind, hosts, len(own), shares, off, sd))
    return table(("kind", "host", "loads", "TTFT/TPOT/E2EL in 90 %", "E2EL off, %", "width, %"), lines)


@program("studies.left_out_widths")
def main(argv: Sequence[str]) -> int:
    every = int(argv[0]) if argv else EVERY
    paths = served_files()
    print(summary([row for path in paths[::every] for row in widths(path)]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
