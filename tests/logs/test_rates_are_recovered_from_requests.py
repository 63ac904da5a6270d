"""Rates that made a log are found again from its requests, timeouts count as waits, and the command writes what `simulate` takes."""

import dataclasses
import json

import numpy as np
import pytest

from calibrate.logs.learn import HOST as HOST_PRIOR
from calibrate.logs.learn import fitted_line, identified_rates, learn_rates, update
from calibrate.logs.requests import ServedLog
from calibrate.sampling import Settings
from sim.cost.rates import UNITS
from sim.rates.posterior import rates_for, rates_from_file
from sim.rates.serving import as_served
from studies import known_logs
from tests.cli import run
from tests.logs.made_logs import GPU, HOST, PRIORS, RUN, as_csv, made, rates_at

TRUE = {"c0_s": 1.0, "linear_flops_per_s": 0.6, "attention_flops_per_s": -0.7, "beta": -0.8, "c_prefill_s": -0.5}
SETTINGS = Settings(draws=500, tune=700, chains=2, seed=1)


def log_of(experiment, waited=None):
    waits = np.full(len(experiment.ttft_s), np.nan) if waited is None else waited
    return ServedLog(experiment, np.isnan(waits), waits, "made")


@pytest.fixture(scope="module")
def truth():
    return rates_at(TRUE)


@pytest.fixture(scope="module")
def answered(truth, tmp_path_factory):
    """(result of the command, the posterior that it wrote, what it learnt on the way): one learning is enough for all that is asked."""
    folder, kept = tmp_path_factory.mktemp("log"), []

    def kept_too(*args, **named):
        kept.append(learn_rates(*args, **named))
        return kept[-1]

    # one log: ranks over many are `make sbc`'s. Of the host's time they were 0.99, 0.48 and 0.87 in the logs of seeds 0, 1 and 2
    (folder / "log.csv").write_text(as_csv(made(truth, seed=1)))
    argv = [str(folder / "log.csv"), "--model", "Qwen2.5-7B", "--max-num-seqs", "256", "--max-num-batched-tokens", "8192"]
    how = ["--from-datasheet", "--out", str(folder / "p.nc"), "--json", "--seed", "1"]
    how += ["--fit-option", "draws=800", "--fit-option", "chains=2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("calibrate.logs.log_rates.learn_rates", kept_too)
        result = run("learn", "--gpu", "H100", *argv, *how)
    assert result.code == 0, result.stderr
    return result, folder / "p.nc", kept[0]


@pytest.fixture(scope="module")
def learnt(answered):
    return answered[2]


def test_the_rates_lie_in_their_intervals_and_some_are_narrow(learnt, truth):
    ranks = {name: (getattr(learnt.rates, name) < getattr(truth, name)).mean() for name in learnt.free}
    assert all(0.005 < rank < 0.995 for rank in ranks.values()), ranks
    assert sum(0.05 < rank < 0.95 for rank in ranks.values()) >= len(ranks) - 2, ranks
    for name in ("c0_s", "linear_flops_per_s"):
        assert np.std(np.log(getattr(learnt.rates, name))) < 0.6 * PRIORS[name].sigma, name


def test_the_hosts_time_is_found(learnt):
    low, high = np.quantile(learnt.request_s, [0.005, 0.995])
    assert low < HOST.request_s + HOST.serial_s < high
    assert np.std(np.log(learnt.request_s)) < 0.8 * HOST_PRIOR.sigma


def test_rates_that_are_not_learnt_change_no_answer(truth):
    base = made(truth, count=40)
    free = identified_rates(RUN, log_of(base), PRIORS)
    assert {"c0_s", "kernel_s", "c_seq_s"} <= set(free)
    for name in set(UNITS) - set(free):
        other = made(dataclasses.replace(truth, **{name: 2 * getattr(truth, name)}), count=40)
        # The prompts that decide what a log shows are long enough to hide their launches. Short ones wait for theirs: 1.04 % of an answer.
        rtol = 0.015 if name == "launch_layer_s" else 0.0
        np.testing.assert_allclose(other.e2el_s, base.e2el_s, rtol=rtol, err_msg=name)


def test_a_line_finds_a_linear_dependence_and_the_update_is_the_normal_one():
    rng = np.random.default_rng(0)
    z = rng.standard_normal((200, 2))
    line = fitted_line(z, z @ np.array([[1.0, 0.0], [2.0, 1.0]]) + 0.5 + 0.01 * rng.standard_normal((200, 2)))
    np.testing.assert_allclose(line.slope, [[1.0, 2.0], [0.0, 1.0]], atol=0.01)
    np.testing.assert_allclose(line.at, 0.5, atol=0.01)
    mean, root, _ = update(line, line.mean(np.array([0.3, -0.2])), np.array([0, 1]), np.full(2, 0.01))
    np.testing.assert_allclose(mean, [0.3, -0.2], atol=0.01)
    assert (np.diag(root @ root.T) < 0.01).all()


def test_waits_pull_towards_slower_rates(monkeypatch):
    """Answered requests that say nothing of the rates, and half that gave up after twice what theirs should have taken."""

    def simulated(run, log, priors, free, z):
        ones = np.ones(len(log.answered))
        return 0.1 * ones, 0.01 * ones, np.exp(0.5 * z[free.index("c0_s")]) * ones

    monkeypatch.setattr("calibrate.logs.learn._simulated", simulated)
    monkeypatch.setattr("calibrate.logs.learn.ROUNDS", 2)  # the line is exact in the first
    e = made(rates_at({}), count=40)
    gave_up = np.arange(40) % 2 == 0
    cut = dataclasses.replace(e, ttft_s=np.where(gave_up, np.nan, 0.1), e2el_s=np.where(gave_up, np.nan, 1.0))
    found = learn_rates(RUN, log_of(cut, np.where(gave_up, 2.0, np.nan)), PRIORS, SETTINGS)
    assert np.quantile(found.rates.c0_s, 0.05) > PRIORS["c0_s"].median


def test_the_rates_of_a_log_whose_slower_requests_gave_up_lie_in_their_intervals(truth, monkeypatch):
    # a saturated one, for which fewer rounds than the command's will do
    monkeypatch.setattr("calibrate.logs.learn.ROUNDS", 3)
    e = made(truth, seed=3, count=160, rates_per_s=(8.0, 30.0))
    limit = float(np.quantile(e.e2el_s, 0.6))
    gave_up = e.e2el_s > limit
    cut = dataclasses.replace(e, ttft_s=np.where(gave_up, np.nan, e.ttft_s), e2el_s=np.where(gave_up, np.nan, e.e2el_s))
    censored = learn_rates(RUN, log_of(cut, np.where(gave_up, limit, np.nan)), PRIORS, SETTINGS)
    for name in censored.free:
        assert 0.005 < (getattr(censored.rates, name) < getattr(truth, name)).mean() < 0.995, name


def test_the_command_writes_rates_as_served(answered, learnt):
    result, path, _ = answered
    report = json.loads(result.stdout)
    replayed = {row["figure"]: row for row in report["replayed"]}
    # the intervals are of the rates alone: medians should lie in them, a 99th percentile of 240 noisy requests need not
    for name, row in replayed.items():
        if name.startswith("p50"):
            assert 0.98 * row["low_s"] <= row["measured_s"] <= 1.02 * row["high_s"], row
        assert row["simulated_s"] == pytest.approx(row["measured_s"], rel=0.15), row
    rates = rates_from_file(path, GPU)
    np.testing.assert_allclose(np.median(rates.draws.c0_s), np.median(learnt.rates.c0_s), rtol=0.05)
    served, host = as_served(rates)
    assert served is rates  # no path is applied a second time
    assert host.request_s == pytest.approx(HOST.request_s, rel=0.6)
    assert "240 requests" in rates.summary


def test_rates_as_served_get_no_overhead_a_second_time(answered):
    _, path, _ = answered
    argv = ["--run", str(path.parent / "log.csv"), "--model", "Qwen2.5-7B", "--gpu", "H100", "--max-num-seqs", "256", "--draws", "2"]
    argv += ["--max-num-batched-tokens", "8192", "--posterior", str(path)]
    (report,) = json.loads(run("validate", *argv, "--json").stdout)
    assert report["notes"][-1].startswith("rates as served")
    errors = {score["metric"]: score for score in report["scores"]}
    assert errors["tpot_s"]["requests"] == len(learnt_log(path).answered)
    assert errors["tpot_s"]["median_abs"] < 0.05
    refused = run("validate", *argv, "--transferred")
    assert (refused.code, refused.stdout) == (2, "")
    assert "no serving overhead is applied to them a second time" in refused.stderr


def learnt_log(path):
    from calibrate.logs.read import read_log

    return read_log(path.parent / "log.csv")


def test_the_fixed_cost_is_always_learnt(learnt):
    assert "c0_s" in learnt.free


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["log.csv"], "needs --model"),
        (["log.csv", "--model", "Qwen9-7B"], "Qwen9-7B"),
        (["bad.csv", "--model", "Qwen2.5-7B", "--out", "p.nc"], "lacks the columns"),
    ],
)
def test_bad_requests_are_one_line_and_leave_nothing(tmp_path, monkeypatch, truth, argv, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_text(as_csv(made(truth, count=30)))
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    code, out, err = run("learn", "--gpu", "H100", *argv)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.csv", "log.csv"]


def test_rates_start_from_the_packaged_posterior_as_served():
    from calibrate.logs.learn import served_priors

    priors, basis = served_priors(RUN)
    declared, sheet = served_priors(RUN, datasheet=True)
    served, _ = as_served(rates_for(RUN.gpu))
    for name in ("c_seq_s", "linear_flops_per_s"):
        assert priors[name].median == pytest.approx(float(np.median(getattr(served.draws, name))), rel=0.02)
    assert priors["linear_flops_per_s"].sigma < 0.5 * declared["linear_flops_per_s"].sigma
    assert "posterior" in basis
    assert "datasheet" in sheet


def test_llamacpp_starts_from_rates_of_its_own():
    from calibrate.logs.learn import served_priors
    from sim.rates.posterior import rates_for, stack_posterior

    run = known_logs.made_run()
    priors, _ = served_priors(run)
    own = rates_for(run.gpu, run.precision, path=stack_posterior(run.gpu, "llamacpp")).point
    # vLLM's servers hide host work, and its GEMMs are other kernels
    assert {name: priors[name].median for name in ("c_seq_s", "linear_flops_per_s")} == pytest.approx(
        {"c_seq_s": own.c_seq_s, "linear_flops_per_s": own.linear_flops_per_s}, rel=0.1
    )


@pytest.mark.slow
def test_a_llamacpp_log_gives_its_rates_back(capsys):
    assert known_logs.main(["2"]) == 0
    assert "2 of 2 logs give their rates back" in capsys.readouterr().out
