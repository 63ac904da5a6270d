"""Power that served GPUs drew, beside what their simulated runs moved and computed: shares of sim.results.power.

    python -m studies.power

Fits IDLE, MEMORY, COMPUTE and KERNELS to the packaged runs of H100s and H200s that say what they drew, and prints how far they are off on
runs that nothing was learnt from. Takes a minute.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from calibrate.measured_files import VALIDATION, packaged_measurements, validation_measurements
from calibrate.served.replay import study_of
from calibrate.served.runs import read_served
from sim.rates.load import load_rates
from sim.rates.serving import packaged_overhead
from sim.results.power import COMPUTE, IDLE, KERNELS, LOG_SD, MEMORY, MOST, PoweredServer, utilisation
from sim.study.run import planned, run_pools
from studies.program import program

LEAST_S = 3.0  # the card is asked every quarter of a second, and shows a mean over some of them
KINDS = ("open", "closed", "ladder", "sessions")


def loads(path: Path) -> Iterator[tuple[str, float, tuple[float, float, float]]]:
    """(what, share of the power limit that was drawn, utilisation) of each load of a file that says its power."""
    import xarray as xr

    with xr.open_dataset(path) as data:
        drawn = (
            dict(zip(map(str, data["name"].values), map(float, data["power_w_mean"].values), strict=True)) if "power_w_mean" in data else {}
        )
    if not drawn:
        return
    run = read_served(path)
    if run.replicas > 1 or run.parallel.dp > 1:
        return  # one card of several was read
    rates, overhead = load_rates(run.deployment), packaged_overhead()
    assert overhead is not None
    served, host = overhead.applied(rates), overhead.host(rates)
    server = PoweredServer(run.model, run.precision, run.gpu, run.tp, run.parallel)
    for load in run.experiments:
        if load.replicate or load.kind not in KINDS or load.text or not np.isfinite(drawn.get(load.name, np.nan)):
            continue
        study = study_of(run, load, served, host)
        record = run_pools(study, planned(study), study.workload.trace, keep_iterations=True)
        if record.paid_s[0] > LEAST_S:
            used = utilisation(record, np.ones(len(record.terms), bool), server, record.paid_s[0])
            yield f"{run.gpu.name} {run.name} {load.name}", drawn[load.name] / float(run.gpu.power_w or np.nan), used


def fitted(found: list[tuple[str, float, tuple[float, float, float]]]) -> np.ndarray:
    """Shares that lie closest to what was drawn, relatively; none below zero."""
    drawn = np.array([share for _, share, _ in found])
    rows = np.array([(1.0, *used) for _, _, used in found])
    return np.asarray(nnls(rows / drawn[:, None], np.ones(len(drawn)))[0])


def errors(found: list[tuple[str, float, tuple[float, float, float]]], shares: np.ndarray) -> np.ndarray:
    """Log of predicted over drawn power."""
    return np.array([np.log(min(float(shares @ (1.0, *used)), MOST) / drawn) for _, drawn, used in found])


@program("python -m studies.power")
def main(argv: Sequence[str]) -> int:
    """Fit, and print what is off."""
    files = [*packaged_measurements(), *validation_measurements()]
    found = {path: list(loads(path)) for path in files if "served" in path.name}
    seen = [each for path, of in found.items() if path.parent.name != VALIDATION for each in of]
    held_out = [each for path, of in found.items() if path.parent.name == VALIDATION for each in of]
    print(f"fitted  {np.round(fitted(seen), 3)} to {len(seen)} loads")
    packaged = np.array((IDLE, MEMORY, COMPUTE, KERNELS))
    for what, of in (("seen", seen), ("held out", held_out)):
        off = errors(of, packaged)
        print(
            f"{what:<8}{len(of):3} loads, packaged shares off {100 * np.median(np.abs(off)):.1f} % in the median, log sd {np.std(off):.3f}"
        )
        inside = np.mean(np.abs(off) <= 1.645 * LOG_SD)
        print(f"        bias {100 * np.median(off):+.1f} %, {100 * inside:.0f} % within the 90 % interval")
    for (name, drawn, _), off in zip(held_out, errors(held_out, packaged), strict=True):
        print(f"{name:<60}{100 * drawn:4.0f} % of the limit {100 * off:+6.1f} %")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
