"""Errors of kinds of serving, by which answers about such a kind are moved and widened (sim.rates.kinds), as the packaged file.

    python -m studies.kinds_seen OUT.json [KIND ...]

Every packaged served run of such a kind is predicted at the median rates with other servers' overhead (vLLM's). An error of a load's
median E2EL is the factor on step times that would mend it: near saturation the queue makes more of the same factor. Loads whose requests
take over BEHIND of the time that they are sent in are left out, as are prompts that share a prefix: what is off there is not the kind.
Of a load sent again the last counts: kernels of experts are compiled as sizes come up, for seconds. First tokens are of the lowest open
loop and of closed loops. Runs of one kind and model are one deployment. Several GPUs are predicted without any grid of several. Servers of
no kind are the ordinary ones, whose errors kinds have as well.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq

from calibrate.measured_files import served_files
from calibrate.served.in_processes import in_processes
from calibrate.served.left_out import LEAST_REQUESTS, kind_of_load, without_tp
from calibrate.served.replay import replay
from calibrate.served.runs import Experiment, ServedRun, by_plugin, read_served
from calibrate.served.scores import score
from sim.errors import UsageError
from sim.files import write_text
from sim.rates.fingerprint import formula_fingerprint
from sim.rates.kinds import LEARNT, ORDINARY, SCHEMA, by_metric, gains, kinds_of, ordinary, parse_seen
from sim.rates.load import load_rates, widened
from sim.rates.posterior import slowed
from sim.rates.serving import packaged_overhead
from studies.program import program

FIRST_TOKENS = ("low", "closed")
LOADS = (*FIRST_TOKENS, "high", "burst")
BEHIND = 1 / 3
MOST = 1.0  # log factor of step times


class Errors(NamedTuple):
    """Log factors of step times [load], and of the median TTFT [load of FIRST_TOKENS]: measured over predicted."""

    steps: list[float]
    ttft: list[float]


def errors(run: ServedRun) -> Errors:
    """Of each load as it was sent last."""
    overhead, of_tp = packaged_overhead((run.gpu.name, run.name)), kinds_of(run.deployment) == ["tp"]
    rates = widened(without_tp(run.gpu), run.deployment, seen=()) if of_tp else load_rates(run.deployment, seen=())
    if overhead is None:
        raise UsageError("no packaged serving overhead")
    found = Errors([], [])
    for load in {each.load: each for each in run.experiments}.values():
        kind, sent_s = kind_of_load(load, run), float(np.ptp(load.arrival_s))
        if len(load.ttft_s) < LEAST_REQUESTS or kind not in LOADS or load.kind == "ladder":
            continue
        if load.kind == "open" and np.nanmedian(load.e2el_s) > BEHIND * sent_s:
            continue

        def off(log_factor: float, metric: str = "e2el_s", load: Experiment = load) -> float:
            moved = slowed(rates, log_factor, 0.0, 0)
            served, host = overhead.applied(moved), overhead.host(moved)
            bias = {s.metric: s.bias for s in score(load, replay(run, load, served, host), overhead.noise)}
            return math.log1p(bias[metric])

        ends = off(-MOST), off(MOST)
        found.steps.append(float(brentq(off, -MOST, MOST, xtol=0.005)) if ends[0] < 0.0 < ends[1] else math.copysign(MOST, -ends[0]))
        if kind in FIRST_TOKENS:
            found.ttft.append(-off(0.0, "ttft_s"))
    return found


def errors_of(path: Path, only: Sequence[str] = ()) -> tuple[tuple[str, str], Errors]:
    """(kind, model) of a served run and its errors; empty names where it is of no kind that is learnt here."""
    run = read_served(path)
    kind = next(iter(kinds_of(run.deployment)), ORDINARY)
    if (
        kind in LEARNT or (only and kind not in only) or by_plugin(run) or (kind == "tp" and run.precision.weights != "bf16")
    ):  # without grids of several, one of bf16 alone
        return ("", ""), Errors([], [])
    return (kind, run.model.name), errors(run)


@program("studies.kinds_seen", "OUT.json")
def main(argv: Sequence[str]) -> int:
    """Predict, print and write; with KINDs only those, others as OUT.json has them. Returns the exit code."""
    only = tuple(argv[1:])
    found: dict[tuple[str, str], Errors] = defaultdict(lambda: Errors([], []))
    served = served_files()
    for of, parts in in_processes(errors_of, served, (only,), None):
        for whole, part in zip(found[of], parts, strict=True):
            whole += part
    found.pop(("", ""), None)
    rows = [row for row in json.loads(Path(argv[0]).read_text(encoding="utf-8"))["seen"] if row["kind"] not in only] if only else []
    for (kind, model), each in sorted(found.items()):
        if not (each.steps and each.ttft):
            continue
        e2el, ttft = ([round(float(v), 4) for v in (np.sqrt(np.mean(np.square(part))), np.mean(part))] for part in each)
        rows.append({"kind": kind, "model": model, "loads": len(each.steps), "e2el": e2el, "ttft": ttft})
        said = "step times by E2EL {:.3f} (mean {:+.3f}), TTFT {:.3f} ({:+.3f})".format(*e2el, *ttft)
        print(f"{kind:13} {model:28} {len(each.steps):2} loads: {said}")
    rows.sort(key=lambda row: (row["kind"], row["model"]))
    seen = parse_seen(rows)
    print("{:13} step times by E2EL {:.3f}, TTFT {:.3f}: in the errors of kinds, too".format(ORDINARY, *ordinary(seen)))
    for kind in dict.fromkeys(each.kind for each in seen if each.kind != ORDINARY):
        gain = (np.array(gains(*each)) for each in by_metric(kind, seen))
        each_gain = (f"{g.mean():+.2f} +- {g.std(ddof=1) / math.sqrt(len(g)):.2f}" for g in gain)
        print(f"{kind:13} log score gained by a mean: step times {', TTFT '.join(each_gain)}")
    write_text(argv[0], json.dumps({"schema": SCHEMA, "formula": formula_fingerprint(), "seen": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
