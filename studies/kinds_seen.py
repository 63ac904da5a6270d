"""Errors of kinds of serving, by which answers about such a kind are widened (sim.rates.kinds), as the packaged file.

    python -m studies.kinds_seen OUT.json

Every packaged served run of such a kind is predicted at the median rates with other servers' overhead, its lowest open loop and its closed
loops alone: beyond saturation errors are those of the queue. Runs of one kind and model are one deployment. Runs over several
GPUs are predicted without any grid of several.
"""

from __future__ import annotations

import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from calibrate.measured_files import packaged_measurements
from calibrate.served.left_out import LEAST_REQUESTS, kind_of_load, without_tp
from calibrate.served.replay import replay
from calibrate.served.runs import ServedRun, read_served
from calibrate.served.scores import score
from sim.errors import UsageError
from sim.files import write_text
from sim.rates.kinds import SCHEMA, kinds_of
from sim.rates.load import load_rates, widened
from sim.rates.serving import packaged_overhead
from studies.program import program

LOADS = ("low", "closed")
LEARNT = ("eager",)  # what these servers were off is in sim.rates.load.EAGER_LAUNCH


def errors(run: ServedRun) -> Iterator[tuple[float, float]]:
    """Log errors of the median (E2EL, TTFT) of each load."""
    overhead, of_tp = packaged_overhead((run.gpu.name, run.name)), kinds_of(run.deployment) == ["tp"]
    rates = widened(without_tp(run.gpu), run.deployment, seen=()) if of_tp else load_rates(run.deployment, seen=())
    if overhead is None:
        raise UsageError("no packaged serving overhead")
    served, host = overhead.applied(rates, run.limits.options.get("async_scheduling", True)), overhead.host(rates)
    for load in run.experiments:
        if not load.replicate and len(load.ttft_s) >= LEAST_REQUESTS and kind_of_load(load, run) in LOADS and load.kind != "ladder":
            bias = {s.metric: s.bias for s in score(load, replay(run, load, served, host), overhead.noise)}
            yield math.log1p(bias["e2el_s"]), math.log1p(bias["ttft_s"])


@program("studies.kinds_seen", "OUT.json")
def main(argv: Sequence[str]) -> int:
    """Predict, print and write. Returns the exit code."""
    paths = packaged_measurements()
    found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for path in [*paths, *sorted((paths[0].parent.parent / "unseen").glob("*.nc"))]:
        if "served_" not in path.name or (run := read_served(path)).limits.engine != "vllm":
            continue
        kind = next(iter(kinds_of(run.deployment)), "")
        if kind and kind not in LEARNT:
            found[kind, run.model.name] += list(errors(run))
    rows = []
    for (kind, model), each in sorted(found.items()):
        e2el, ttft = np.sqrt(np.mean(np.square(each), axis=0)).round(4).tolist()
        rows.append({"kind": kind, "model": model, "loads": len(each), "e2el": e2el, "ttft": ttft})
        print(f"{kind:13} {model:28} {len(each):2} loads: E2EL {e2el:.3f}, TTFT {ttft:.3f}")
    write_text(argv[0], json.dumps({"schema": SCHEMA, "seen": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
