"""Served runs of kinds whose terms no 16-bit grid shows, predicted with the formula and without a term (`make ablate`).

Rates are the packaged ones, the serving overhead that of other servers, and a kind's mean and width are left out: nothing was learnt from
these runs but what the page on kinds says of their lowest loads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from calibrate.measured_files import served_files
from calibrate.served.left_out import LEAST_REQUESTS, kind_of_load
from calibrate.served.replay import replay
from calibrate.served.runs import Experiment, ServedRun, by_plugin, read_served
from sim.cost.attention import reread
from sim.cost.batch import decode_batch, mixed_batch
from sim.cost.step_time import step_time_s
from sim.cost.work import iteration_work
from sim.rates.load import load_rates
from sim.rates.serving import packaged_overhead
from sim.study.deployment import Deployment

LOADS = ("low", "closed", "high", "prefix")
METRICS = ("ttft_s", "tpot_s", "e2el_s")
Ways = Sequence[tuple[str, AbstractContextManager[None]]]


def kinds_table(ways: Ways) -> str:
    """Errors of median latencies, means over loads in percent, with the whole formula and without each term, of runs that it moves."""
    runs = [run for path in served_files() if not by_plugin(run := read_served(path)) and loads_of(run)]
    full = [prices(run) for run in runs]
    lines = [["formula", "served runs", "loads", "with it", "without", "worse without"], ["---"] * 6]
    for name, way in ways:
        with way:
            moved = [run for run, price in zip(runs, full, strict=True) if prices(run) != price]
            without = [error for run in moved for error in errors(run)]
        whole = [error for run in moved for error in errors(run)]
        worse = f"{sum(b[2] > a[2] for a, b in zip(whole, without, strict=True))} of {len(whole)}"
        shown = [str(len(whole)), mean_text(whole), mean_text(without), worse] if moved else ["0", "", "", ""]
        lines.append([name, ", ".join(sorted({run.name for run in moved})[:4]) + (" ..." if len(moved) > 4 else "") or "none", *shown])
    return "TTFT / TPOT / E2EL of medians, %, of served runs that a term moves:\n\n" + "\n".join(
        f"| {' | '.join(line)} |" for line in lines
    )


def loads_of(run: ServedRun) -> list[Experiment]:
    """Loads of a run, each as it was sent last."""
    every = {each.load: each for each in run.experiments if each.kind != "ladder" and len(each.ttft_s) >= LEAST_REQUESTS}
    return [each for each in every.values() if kind_of_load(each, run) in LOADS]


def step_times(d: Deployment) -> list[float]:
    """Seconds of a few iterations: decodes; chunks beside decodes, within graphs, beyond, and after cached tokens."""
    rates = load_rates(d, draws=1, seen=()).point
    chunks = ((100, 100), (2000, 2000), (8000, 8000), (2000, 9000))
    shapes = [decode_batch(d.model, 8.0, 1000.0), *(mixed_batch(d.model, [1000.0] * 4, [(*chunk, 1)]) for chunk in chunks)]
    how: tuple[Any, ...] = (d.precision, d.limits.attention, d.tp, d.gpu, d.parallel, d.limits.lora)
    return [float(step_time_s(iteration_work(d.model, shape, *how), rates)) for shape in shapes]


def prices(run: ServedRun) -> list[Any]:
    """Step times of a run's deployment, and reads of KV that its sequences share, if they do."""
    d = run.deployment
    shares = any(kind_of_load(each, run) == "prefix" for each in run.experiments)
    return [*step_times(d), reread(d.model, d.precision, d.gpu, d.tp, load_rates(d, draws=1, seen=()).point.beta_kv) if shares else None]


def errors(run: ServedRun) -> list[tuple[float, ...]]:
    """Absolute log errors of each load's median TTFT, TPOT and E2EL, at the median rates."""
    overhead, rates = packaged_overhead((run.gpu.name, run.name)), load_rates(run.deployment, draws=1, seen=())
    assert overhead is not None
    served, host = overhead.applied(rates), overhead.host(rates)
    found = []
    for load in loads_of(run):
        seen = replay(run, load, served, host)
        found.append(tuple(abs(math.log(float(np.nanmedian(seen.guess(m)) / np.nanmedian(getattr(load, m))))) for m in METRICS))
    return found


def mean_text(found: Sequence[tuple[float, ...]]) -> str:
    """Means over loads, in percent."""
    return " / ".join(f"{100 * each:.1f}" for each in np.mean(found, axis=0))
