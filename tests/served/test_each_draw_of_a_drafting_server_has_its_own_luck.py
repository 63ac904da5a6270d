"""Which drafts a measured server accepted is not known: its requests lie in the scatter over draws, not in that of one luck."""

from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np

from calibrate.served.replay import replay
from calibrate.served.runs import read_served
from sim.rates.load import load_rates
from sim.rates.serving import packaged_overhead

RUN = read_served(Path(str(files("scenarios") / "data" / "measured" / "validation" / "h200_served_qwen2.5-14b_ngram-k3.nc")))
LOAD = next(load for load in RUN.experiments if load.kind == "closed")
RATES = load_rates(RUN.deployment, seen=())


def scatter(run):
    """Of requests about each draw's own median [draw]: log sd of what one request's luck does."""
    overhead = packaged_overhead()
    times = replay(run, LOAD, overhead.applied(RATES), overhead.host(RATES), draws=8).times["tpot_s"]
    return np.std(np.log(times / np.median(times, axis=0)), axis=1)


def test_requests_of_a_drafting_server_scatter_over_draws():
    without = replace(RUN, limits=replace(RUN.limits, options={}))
    assert np.median(scatter(RUN)) > 0.1 > 5 * np.median(scatter(without))
