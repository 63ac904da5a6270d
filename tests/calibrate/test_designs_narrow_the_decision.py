"""Cells chosen for a decision narrow it more than a coarse grid of the same cost: by the plan, and once their times are known."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrate.design.greedy import Problem, choose, follow, linearised, thinned
from calibrate.design.start import Start
from calibrate.steps.laplace import fitted
from calibrate.steps.random_rates import prior_draws
from calibrate.steps.step_model import log_times
from sim.cost.batch import decode_batch, mixed_batch
from sim.cost.step_time import step_time_s
from sim.cost.work import iteration_work
from sim.errors import UsageError
from sim.specs.models import get_model
from sim.specs.precision import Precision
from tests.calibrate.steps import PRIORS, TRUE_RATES
from tests.cli import run

MODEL = get_model("Qwen2.5-7B")


def long_prompts(rates):
    """A decision: log seconds to prefill 6000 tokens after 20000 and decode 100 tokens of it, for array rates [draw]."""
    prefill = iteration_work(MODEL, mixed_batch(MODEL, [], [(6000.0, 26_000.0, True)]), Precision())
    decode = iteration_work(MODEL, decode_batch(MODEL, 24.0, 26_000.0), Precision())
    return np.log(np.asarray(step_time_s(prefill, rates, np) + 100 * step_time_s(decode, rates, np)))


@pytest.fixture(scope="module")
def planned(step_fit):
    """(problem, chosen, coarse) for the long prompts, known from the priors alone, a third of the grid's cost to spend."""
    cells = step_fit.cells
    start = Start(prior_draws(PRIORS, 600, np.random.default_rng(4)), np.full(3, 0.02), "prior")
    cost = 15 * np.exp(log_times(cells, TRUE_RATES)[0])
    problem = Problem(long_prompts(start.rates)[:, None], np.zeros(1), start.log_times(cells), start.noise_var(cells), cost)
    chosen = choose(problem, cost.sum() / 5)
    return problem, chosen, follow(problem, thinned(cost, chosen.total_s))


def test_the_plan_costs_no_more_and_promises_more(planned):
    _, chosen, coarse = planned
    assert coarse.total_s <= chosen.total_s
    assert len(chosen.cells) >= 4
    assert (np.diff(chosen.sd[:, 0]) <= 0).all()
    assert chosen.sd[-1, 0] < 0.8 * coarse.sd[-1, 0]


def test_measuring_the_chosen_cells_narrows_the_decision_more_and_finds_the_truth(step_fit, planned):
    _, chosen, coarse = planned
    taught = {}
    for name, plan in (("chosen", chosen), ("coarse", coarse)):
        rates, _, _ = fitted(step_fit.cells.take(np.array(plan.cells)), PRIORS).draws(1000, np.random.default_rng(5))
        values = long_prompts(rates)
        taught[name] = np.quantile(values, [0.05, 0.95])
    widths = {name: high - low for name, (low, high) in taught.items()}
    assert widths["chosen"] < 0.9 * widths["coarse"]
    truth = float(long_prompts(TRUE_RATES))
    low, high = taught["chosen"]
    assert low - 0.2 * widths["chosen"] <= truth <= high + 0.2 * widths["chosen"]


def test_conditioning_equals_the_gaussian_formula():
    rng = np.random.default_rng(0)
    z = rng.standard_normal((200_000, 2))
    figure, time = z[:, :1], 0.8 * z[:, :1] + 0.6 * z[:, 1:]
    problem = Problem(figure, np.zeros(1), time, np.array([0.25]), np.ones(1))
    # var(f | t) = 1 - 0.8**2 / (1 + 0.25)
    assert follow(problem, [0]).sd[-1, 0] ** 2 == pytest.approx(1 - 0.64 / 1.25, rel=0.02)


@given(seed=st.integers(0, 1000), budget=st.floats(0.5, 20))
@settings(max_examples=40)
def test_plans_keep_the_budget_and_never_measure_a_cell_twice(seed, budget):
    rng = np.random.default_rng(seed)
    mix = rng.standard_normal((4, 12))
    rates = rng.standard_normal((50, 4))
    problem = Problem(rates[:, :2], np.full(2, 0.01), rates @ mix, np.full(12, 0.1), rng.uniform(0.2, 3, 12))
    plan = choose(problem, budget)
    assert plan.total_s <= budget + 1e-9
    assert len(set(plan.cells)) == len(plan.cells)
    assert (np.diff(plan.sd, axis=0) <= 1e-9).all()
    assert (plan.sd >= 0.1 - 1e-9).all()  # what the rates do not explain stays


def test_a_figure_that_no_rate_moves_is_refused():
    problem = Problem(np.ones((50, 1)), np.zeros(1), np.random.default_rng(0).standard_normal((50, 3)), np.ones(3), np.ones(3))
    with pytest.raises(UsageError, match="same at every draw"):
        choose(problem, 10.0)


def test_the_line_through_draws_is_exact_for_a_linear_figure():
    rng = np.random.default_rng(1)
    rates, more = rng.standard_normal((60, 5)), rng.standard_normal((10, 5))
    slope = np.arange(5.0)
    values, missed = linearised((rates @ slope)[:, None] + 3, rates, more)
    np.testing.assert_allclose(values[:, 0], more @ slope + 3, atol=1e-9)
    assert np.abs(missed).max() < 1e-9


SCENARIO = """
question: How fast does one long sequence decode?
command: what-if
options: {gpu: H100, model: Llama-3.1-8B, ctx: 64K, k: [8]}
report: [best.1.tok_s]
"""


def test_the_command_designs_for_a_gpu_never_measured_and_writes_the_cells(tmp_path):
    (tmp_path / "s.yaml").write_text(SCENARIO)
    argv = [str(tmp_path / "s.yaml"), "--hw", "A40", "--budget", "20s", "--cells-out", str(tmp_path / "c.json"), "--json"]
    code, out, _ = run("design", *argv)
    assert code == 0
    report = json.loads(out)
    assert "GPUs never measured" in report["known_now"]
    chosen = report["chosen"]
    assert report["checks_s"] + sum(chosen["cost_s"]) <= 20
    (low0, high0), (low1, high1) = chosen["intervals"][0][0], chosen["intervals"][-1][0]
    assert high1 / low1 < high0 / low0
    assert len(json.loads((tmp_path / "c.json").read_text())["cells"]) == len(chosen["cells"]) > 0


def test_a_goal_that_is_decided_says_that_no_measurement_would_change_it(tmp_path):
    (tmp_path / "s.yaml").write_text(SCENARIO)
    argv = [str(tmp_path / "s.yaml"), "--hw", "H100", "--budget", "9s", "--goal", "best.1.tok_s<=0.001"]
    code, out, err = run("design", *argv)
    assert (code, err) == (0, "")
    assert "no measurement would change the decision: at every draw of the rates the goal is decided" in " ".join(out.split())
    assert json.loads(run("design", *argv, "--json").stdout)["chosen"]["cells"] == []


SERVED = """
question: How many replicas hold the goal?
command: simulate
options: {gpu: H100, model: Llama-3.1-8B, num-prompts: 30, request-rate: 8, random-output-len: 16, draws: 0, goal: p99_ttft_ms<=60}
sweep: {replicas: [1, 2]}
report: [mean_tpot_ms, p99_ttft_ms]
"""


def test_the_scenarios_own_goal_is_the_decision(tmp_path):
    (tmp_path / "s.yaml").write_text(SERVED)
    argv = ["design", str(tmp_path / "s.yaml"), "--hw", "H100", "--budget", "9s", "--json"]
    report = json.loads(run(*argv).stdout)
    assert (report["metric"], report["limit"]) == ("p99_ttft_ms", 60)
    other = json.loads(run(*argv, "--metric", "mean_tpot_ms").stdout)
    assert (other["metric"], other["limit"]) == ("mean_tpot_ms", None)


def test_a_slow_figure_is_simulated_at_fewer_draws_that_spread_as_far(monkeypatch):
    from types import SimpleNamespace

    from calibrate.design import designed

    clock = iter(np.arange(0.0, 1e4, 50.0))
    monkeypatch.setattr(designed.time, "monotonic", lambda: next(clock))
    start = SimpleNamespace(rates=SimpleNamespace(beta=np.zeros(801), at=lambda draw: draw))
    seen = []
    draws, figures = designed._simulated(SimpleNamespace(at=lambda rates: [float(rates)]), start, lambda done, of: seen.append((done, of)))
    assert len(draws) == len(figures) == designed.FEWEST
    assert seen[-1] == (designed.FEWEST, designed.SIMULATIONS)
    gaps = np.diff(np.sort(draws))
    assert gaps.max() < 4 * 800 / designed.FEWEST


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "SCENARIO"),
        (["s.yaml"], "--budget"),
        (["--budget", "0s", "s.yaml"], "not a time"),
        (["--budget", "20s", "no.yaml"], "no such scenario"),
        (["--budget", "0.1s", "s.yaml"], "is too little"),
        (["--budget", "9s", "s.yaml", "--metric", "best.1.miles"], "has no figure 'best.1.miles'"),
        (["--budget", "9s", "s.yaml", "--goal", "fast"], "'--goal': needs METRIC<=NUMBER"),
        (["--budget", "9s", "s.yaml", "--posterior", "x.nc", "--from-datasheet"], "contradict"),
        (["--budget", "9s", "s.yaml", "--cells-out", "no/c.json"], "not a folder"),
    ],
)
def test_designs_that_make_no_sense_are_one_line(tmp_path, monkeypatch, argv, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(SCENARIO)
    code, out, err = run("design", "--hw", "H100", *argv)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
    assert [p.name for p in tmp_path.iterdir()] == ["s.yaml"]
