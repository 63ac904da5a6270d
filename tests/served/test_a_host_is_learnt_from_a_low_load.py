"""A host is learnt from a low load of a server: what made the load is found, and what it does not show keeps its prior."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from calibrate.served.host_fit import as_on, learn_host
from calibrate.served.replay import replay
from sim.errors import SimctlError, UsageError
from sim.rates.host import Host
from sim.rates.posterior import rates_for
from sim.rates.serving import packaged_overhead
from sim.rates.source import RateSource
from sim.study.deployment import Deployment
from tests.cli import run as simctl
from tests.logs.made_logs import RUN
from tests.served.made_runs import open_loop

IN_PROCESS, PRIOR = rates_for(RUN.gpu, RUN.precision, draws=200), packaged_overhead().elsewhere(None)
WORK = 1.4  # hosts that launch slowly are slow at other work, too, half as much in the mean: WITH_LAUNCHES
SLOW = Host(launch=2.0, work=WORK, step=1.06, api_s={"request_s": 3e-3, "serial_s": WORK * PRIOR.serial_s, "token_s": WORK * PRIOR.token_s})


def served_on(host, rate, count, seed, noise=0.03):
    """A load as a server on this host would answer it, single first tokens off by `noise`."""
    load = open_loop("load", rate, count, seed)
    seen = replay(RUN, load, *as_on(host, IN_PROCESS, PRIOR))
    first = seen.ttft_s * np.exp(noise * np.random.default_rng(seed).standard_normal(count))
    return replace(load, ttft_s=first, e2el_s=first + seen.e2el_s - seen.ttft_s)


@pytest.fixture(scope="module")
def learnt():
    return learn_host(RUN, [served_on(SLOW, 2.0, 40, 0)], IN_PROCESS, PRIOR).host


def test_step_time_and_time_per_request_are_found(learnt):
    assert math.log(learnt.step / SLOW.step) == pytest.approx(0.0, abs=3 * learnt.step_sd + 0.01)
    whole = learnt.api_s["request_s"] + learnt.api_s["serial_s"]
    assert whole == pytest.approx(SLOW.api_s["request_s"] + SLOW.api_s["serial_s"], abs=3e-3)


def test_what_a_low_load_does_not_show_keeps_its_prior(learnt):
    assert learnt.work_sd > 0.5 * PRIOR.work_sd
    assert abs(math.log(learnt.work)) < 2 * PRIOR.work_sd


def test_a_higher_load_is_predicted_better_than_of_a_host_never_seen(learnt):
    truth = served_on(SLOW, 8.0, 120, 1, 0.0)
    known, never = (
        np.median(np.abs(np.log(replay(RUN, truth, *as_on(host, IN_PROCESS, PRIOR)).e2el_s / truth.e2el_s))) for host in (learnt, Host())
    )
    assert never > 0.2
    assert known < 0.05


def test_a_learnt_host_narrows_what_is_known(learnt):
    deployment = Deployment(RUN.model, RUN.gpu)
    wide, narrow = (RateSource(host_scale=host).of(deployment, 200)[0] for host in (None, learnt))
    wide_sd, sd = (float(np.std(np.log(each.draws.launch_layer_s))) for each in (wide, narrow))
    assert sd < 0.6 * wide_sd
    assert float(narrow.point.beta) == pytest.approx(float(wide.point.beta) / learnt.step, rel=1e-6)


def test_a_host_file_reads_back(learnt, tmp_path):
    path = tmp_path / "host.json"
    path.write_text(learnt.text())
    assert Host.of(path) == learnt


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("{", "not a host file"),
        ({"launch": 1.0}, "not of schema"),
        ({"schema": "simctl-host/1", "launch": -1}, "0.05 to 20"),
        ({"schema": "simctl-host/1", "lunch": 1}, "no entry"),
        ({"schema": "simctl-host/1", "api_s": {"request_s": -1}}, "not negative"),
        ({"schema": "simctl-host/1", "work": "fast"}, "not a host file"),
    ],
)
def test_a_damaged_host_file_is_one_line(body, says, tmp_path):
    path = tmp_path / "host.json"
    path.write_text(body if isinstance(body, str) else json.dumps(body))
    with pytest.raises(SimctlError, match=says):
        Host.of(path)
    found = simctl("what-if", "--ctx", "8K", "--gpu", "H100", "--host", str(path))
    assert found.code == 2
    assert found.stderr.startswith("simctl: --host: ")
    assert found.stderr.count("\n") == 1


def test_too_few_requests_are_refused():
    with pytest.raises(UsageError, match="fewer than"):
        learn_host(RUN, [served_on(Host(), 2.0, 4, 0)], IN_PROCESS, PRIOR)


def test_work_per_sequence_binds_a_crowd_on_a_slow_host():
    """`--host` scales the engine's own work, which 256 streams of a small model wait for."""
    argv = ("simulate", "--gpu", "H100", "--model", "Llama-3.2-1B", "--num-prompts", "256", "--max-concurrency", "256")
    argv += ("--random-input-len", "64", "--random-output-len", "32", "--draws", "0", "--no-iterations", "--json")
    one, two = (json.loads(simctl(*argv, "--host", scale).stdout)["median_tpot_ms"] for scale in ("1", "2"))
    assert two > 1.6 * one
