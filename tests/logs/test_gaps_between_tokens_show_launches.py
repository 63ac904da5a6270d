"""The gaps between tokens that a benchmark writes down tell what its host takes to launch; a log is of prompts sent as text."""

import json
from dataclasses import replace

import numpy as np
import pytest

from calibrate.logs.learn import served_priors
from calibrate.logs.read import read_log
from calibrate.served.host_fit import learn_host
from calibrate.served.launches import launch_waits
from calibrate.served.overhead import launching_s
from calibrate.served.replay import replay
from sim.rates.posterior import rates_for
from sim.rates.serving import TEXT_S, as_served, packaged_overhead
from studies.sbc.hosts import streams
from tests.logs.made_logs import RUN, as_aiperf, as_bench_serve, as_csv, as_guidellm

IN_PROCESS = rates_for(RUN.gpu, RUN.precision)


def logged(path, wait_s):
    """A result of `vllm bench serve` whose streams waited so long for each of 16 prompts' launch."""
    made = streams(np.full(16, wait_s))
    gaps = [np.diff(times).tolist() for times in made.token_s]
    path.write_text(json.dumps(as_bench_serve(made, itls=gaps)))
    return read_log(path)


def test_a_slower_host_is_seen_in_the_gaps(tmp_path):
    slow, fast = (logged(tmp_path / f"{1e3 * wait:g}.json", wait) for wait in (0.030, 0.012))
    assert len(launch_waits(slow.experiment)) == 16
    medians = [served_priors(RUN, log=log)[0]["launch_layer_s"] for log in (slow, fast)]
    without = served_priors(RUN)[0]["launch_layer_s"]
    assert medians[0].median > 1.5 * medians[1].median
    assert medians[0].sigma < without.sigma
    work = packaged_overhead().host(IN_PROCESS).work
    own = 0.030 - (work.iteration_s + 3 * work.sequence_s + work.prefill_s)
    known = IN_PROCESS.point.launch_layer_s
    assert medians[0].median / known == pytest.approx(own / launching_s(RUN, IN_PROCESS.point), rel=0.1)


def test_a_host_is_learnt_from_them(tmp_path):
    log, prior = logged(tmp_path / "log.json", 0.030).experiment, packaged_overhead().elsewhere(None)
    run = replace(RUN, experiments=(log,))
    seen, silent = (learn_host(run, [each], IN_PROCESS, prior).host for each in (log, replace(log, token_s=None)))
    assert seen.launch > 1.2
    assert seen.launch_sd < 0.7 * silent.launch_sd


@pytest.mark.parametrize("layout", ["bench", "guidellm", "aiperf", "csv"])
def test_whatever_wrote_it_a_log_is_predicted_with_the_text_time_of_simulate(layout, tmp_path):
    made = streams(np.full(8, 0.02))
    text = {"bench": lambda e: json.dumps(as_bench_serve(e)), "guidellm": lambda e: json.dumps(as_guidellm(e)), "aiperf": as_aiperf,
            "csv": as_csv}[layout](made)  # fmt: skip
    path = tmp_path / ("log.csv" if layout == "csv" else "log.jsonl" if layout == "aiperf" else "log.json")
    path.write_text(text)
    experiment = read_log(path).experiment
    assert experiment.text
    rates, host = as_served(IN_PROCESS)
    as_simulated = replay(RUN, experiment, rates, host).ttft_s
    of_validate = replay(RUN, experiment, rates, packaged_overhead().host(IN_PROCESS)).ttft_s
    assert of_validate == pytest.approx(as_simulated, abs=0)
    ids = replay(RUN, replace(experiment, text=False), rates, host).ttft_s
    assert np.median(as_simulated - ids) == pytest.approx(TEXT_S, abs=1e-3)
