"""A host learnt from the lowest load of each packaged server, judged on the server's other loads: does learning make any of them worse?

    python -m studies.learned_hosts [--check] [--json] [RUN ...]

Every served run with an open loop and another load: its host is learnt from the lowest open loop, of which what is sure is kept (with
--check as `simctl check --out` does, which asks for causes too), and its other loads are predicted as of a host never seen and as of the
one kept. Nothing of the run is in the overhead or the widths that both start from. Rules of learning are chosen on the servers of one
half of the models (by the CRC of their names) and scored on the other half.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from zlib import crc32

import numpy as np

from calibrate.measured_files import served_files
from calibrate.served.causes import causes_of
from calibrate.served.host_fit import learn_host
from calibrate.served.in_processes import in_processes
from calibrate.served.kept_host import kept
from calibrate.served.left_out import LEAST_REQUESTS
from calibrate.served.overhead import transferred
from calibrate.served.replay import METRICS, replay
from calibrate.served.runs import Experiment, ServedRun, read_served
from calibrate.served.validation import low_load
from sim.cost.rates import RateDraws
from sim.errors import UsageError
from sim.rates.host import Host
from sim.rates.kinds import packaged_seen, without
from sim.rates.load import load_rates
from sim.rates.serving import ServingOverhead, packaged_overhead
from simctl.text.layout import table
from studies.program import program

DRAWS = 200
WORSE = 0.01  # of a load's error: more is worse
HALVES = ("chosen on", "held out")


@dataclass(frozen=True)
class Judged:
    """Errors of a load's median times by metric, predicted over measured less 1: of a host never seen, and of the one learnt."""

    run: str
    model: str
    load: str
    never_seen: dict[str, float]
    learnt: dict[str, float]

    def worse(self, metric: str) -> float:
        """By how much the error grew."""
        return abs(self.learnt[metric]) - abs(self.never_seen[metric])


def judged(path: Path, as_check: bool = False) -> list[Judged]:
    """The other loads of a run; none where it has no open loop, or nobody knows its engine's overhead."""
    run = read_served(path)
    try:
        low = low_load(run)[0]
    except UsageError:
        return []
    others = [e for e in run.experiments if e.kind != "ladder" and not e.replicate and e is not low and len(e.ttft_s) >= LEAST_REQUESTS]
    overhead = packaged_overhead((run.gpu.name, run.name), run.limits.engine)
    if not others or overhead is None:
        return []
    rates = load_rates(run.deployment, draws=DRAWS, seen=without(run.deployment, packaged_seen()))
    prior = overhead.elsewhere(None)
    learnt = causes_of(run, [low], rates, prior).learnt if as_check else learn_host(run, [low], rates, prior)
    return list(_judged(run, others, rates, overhead, kept(learnt)))


def _judged(run: ServedRun, loads: Sequence[Experiment], rates: RateDraws, overhead: ServingOverhead, host: Host) -> Iterator[Judged]:
    for load in loads:
        errors = []
        for known in (None, host):
            served = transferred(overhead.elsewhere(known), rates)
            seen = replay(run, load, served.rates, served.host)
            errors.append({m: float(np.nanmedian(seen.guess(m)) / np.nanmedian(getattr(load, m)) - 1) for m in METRICS})
        yield Judged(f"{run.gpu.name} {run.name}", run.model.name, load.name, *errors)


def halves(rows: Sequence[Judged]) -> dict[str, list[Judged]]:
    """The rows by the half of the models that theirs is in."""
    return {half: [row for row in rows if crc32(row.model.encode()) % 2 == i] for i, half in enumerate(HALVES)}


def summary(rows: Sequence[Judged]) -> str:
    """Per half and metric: loads, median absolute errors, how many became worse by more than WORSE, and the most that one did."""
    lines = []
    for half, own in halves(rows).items():
        for metric in METRICS:
            if not own:
                continue
            before, after = (100 * float(np.median([abs(getattr(row, name)[metric]) for row in own])) for name in ("never_seen", "learnt"))
            worse = [row.worse(metric) for row in own]
            count, most = sum(each > WORSE for each in worse), 100 * max(worse)
            runs = len({row.run for row in own})
            lines.append((half, runs, len(own), metric.removesuffix("_s").upper(), f"{before:.1f}", f"{after:.1f}", count, f"{most:.1f}"))
    return table(("servers", "runs", "loads", "metric", "never seen, %", "learnt, %", "worse", "by at most"), lines)


def report(rows: Sequence[Judged]) -> str:
    """The loads whose E2EL became worse, the most first, and the summary."""
    worst = sorted((row for row in rows if row.worse("e2el_s") > WORSE), key=lambda row: -row.worse("e2el_s"))
    said = [f"worse: {r.run}, {r.load}: E2EL {100 * r.never_seen['e2el_s']:+.1f} -> {100 * r.learnt['e2el_s']:+.1f} %" for r in worst]
    return "\n".join([*said, "", summary(rows)])


@program("studies.learned_hosts")
def main(argv: Sequence[str]) -> int:
    words = [each for each in argv if not each.startswith("--")]
    paths = served_files()
    chosen = [path for path in paths if not words or any(word in str(path) for word in words)]
    if not chosen:
        raise UsageError(f"no packaged served run is named by {', '.join(words)}")
    rows = [row for each in in_processes(judged, chosen, ("--check" in argv,), None) for row in each]
    if "--json" in argv:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return 0
    print(report(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
