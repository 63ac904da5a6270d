"""The formula on dual numbers gives the values and gradients that PyTensor gives, and the PyMC model is the density that is fitted."""

from dataclasses import replace

import numpy as np
import pytest

from calibrate.steps.dual import Dual, DualNamespace
from calibrate.steps.iterations import KINDS, StepCells, concatenate
from calibrate.steps.laplace import laplace
from calibrate.steps.step_model import log_times, step_model
from calibrate.steps.whitened import Whitened
from sim.cost.batch import decode_batch
from sim.cost.rates import UNITS, Rates, at_host
from sim.cost.step_time import step_time_s
from sim.cost.work import Work, iteration_work
from sim.specs.attention_policy import blocks
from sim.specs.models import get_model
from sim.specs.precision import Precision
from tests.calibrate.steps import PRIORS, TRUE, TRUE_RATES, synthetic

LIGHT = {"c1_s": 1e-5, "c1_unit_s": 1e-7, "gather_s": 1e-5, "link_bytes_per_s": 5e12}  # so that the link sometimes hides


@pytest.fixture(scope="module")
def cells() -> StepCells:
    """Runs on two hosts, several kinds; a model of experts among them."""
    rng = np.random.default_rng(0)
    parts = [
        replace(each, run=np.full(len(each), name))
        for name, factor in (("a", 0.8), ("b", 1.2))
        for each in (synthetic(rng, at_host(TRUE_RATES, factor), models=("Qwen2.5-3B", "Qwen3-Coder-30B-A3B")),)
    ]
    return concatenate(parts)


def everything(cells: StepCells) -> Work:
    """The cells' work, with iterations that select blocks and fetch them from the host."""
    model, policy = get_model("Qwen2.5-7B"), blocks(8, "host")
    more = [iteration_work(model, decode_batch(model, b, 1e5, policy), Precision(), policy) for b in (1.0, 4.0, 64.0)]
    return Work(*np.concatenate([cells.work, np.array(more, dtype=float)]).T)


def test_duals_agree_with_the_gradients_of_pytensor(cells: StepCells) -> None:
    import pytensor
    import pytensor.tensor as pt

    work, values = everything(cells), TRUE | LIGHT
    duals = Rates(**{name: Dual(float(values[name]), {i: 1.0}) for i, name in enumerate(UNITS)})
    found = step_time_s(work, duals, DualNamespace)
    np.testing.assert_allclose(found.value, step_time_s(work, Rates(**values), np), rtol=1e-12)
    names = list(UNITS)
    vector = pt.dvector("rates")
    safe = Work(*(np.maximum(column, 1e-9) for column in work))  # zeros have no gradient there
    times = step_time_s(safe, Rates(**{name: vector[i] for i, name in enumerate(names)}), pt)
    weights = np.random.default_rng(1).uniform(0.5, 1.5, len(found.value))
    at = np.array([values[name] for name in names])
    expected = pytensor.gradient.grad((times * weights).sum(), vector).eval({vector: at}, mode="FAST_COMPILE")
    for i, name in enumerate(names):
        slope = (weights * found.slopes[i]).sum() if i in found.slopes else 0.0
        assert slope * at[i] == pytest.approx(expected[i] * at[i], rel=1e-6, abs=1e-9), name


def test_a_term_that_no_cell_has_costs_no_work(cells: StepCells) -> None:
    work = cells.as_work()
    assert isinstance(work.link_bytes, float)
    assert isinstance(work.kv_bytes, np.ndarray)
    found = step_time_s(work, Rates(**{name: Dual(float(TRUE[name]), {i: 1.0}) for i, name in enumerate(UNITS)}), DualNamespace)
    assert list(UNITS).index("link_bytes_per_s") not in found.slopes
    np.testing.assert_allclose(np.log(found.value), log_times(cells, TRUE_RATES)[0], rtol=1e-12)


def test_the_pymc_model_is_the_density_that_is_fitted_and_sampled(cells: StepCells) -> None:
    model = step_model(cells, PRIORS, 0.2)
    assert model.size == len(model.free) + 2 + len(KINDS)
    whitened = Whitened(laplace(model))
    density = whitened.compiled("FAST_COMPILE")
    points = np.random.default_rng(2).normal(0.0, 0.3, (3, model.size))
    theirs, their_gradients = zip(*map(density, points), strict=True)
    ours, gradients = zip(*map(whitened.uncompiled, points), strict=True)
    np.testing.assert_allclose(np.diff(theirs), np.diff(ours), rtol=1e-9)
    np.testing.assert_allclose(their_gradients, gradients, rtol=1e-7, atol=1e-7)
    placed = whitened.for_nutpie()._make_logp_func()
    place = np.ones(model.size)
    steps = [(placed(place + 1e-5 * unit)[0] - placed(place - 1e-5 * unit)[0]) / 2e-5 for unit in np.eye(model.size)]
    np.testing.assert_allclose(placed(place)[1], steps, rtol=1e-5, atol=1e-5)


def test_the_pymc_model_names_what_is_unknown_and_what_is_observed(cells: StepCells) -> None:
    import pymc as pm
    import pytensor

    model = step_model(cells, PRIORS, 0.2)
    graph = model.graph()
    assert [v.name for v in graph.observed_RVs] == ["log_step_s"]
    assert [v.name for v in graph.deterministics] == [*model.free, "host", "sigma"]
    assert graph.coords["run"] == ("a", "b")
    assert graph.coords["kind"] == KINDS
    x = np.random.default_rng(3).normal(0.0, 0.5, model.size)
    rates, hosts, errors = (x[part] for part in model.parts)
    inputs = [graph["rate_score"], graph["host_score"], graph["sigma_score"]]
    outputs = [graph[name] for name in (*model.free, "host", "sigma")]
    found = pytensor.function(inputs, outputs, mode="FAST_COMPILE")(rates, hosts, errors)
    for name, theirs in zip(model.free, found, strict=False):
        assert theirs == pytest.approx(model.rates(rates)[name], rel=1e-12), name
    np.testing.assert_allclose(found[-2], model.hosts(hosts), rtol=1e-12)
    np.testing.assert_allclose(found[-1], model.sigma(errors), rtol=1e-12)
    prior = pm.draw(graph["log_step_s"], draws=20, random_seed=1, mode="FAST_COMPILE")
    assert prior.shape == (20, len(cells))
    assert np.isfinite(prior).all()
    assert np.abs(np.median(prior, axis=0) - model.observed).max() < 2.0


def test_nothing_but_what_is_seen_pulls_at_the_mode(cells: StepCells) -> None:
    found = laplace(step_model(cells, PRIORS, 0.2))
    gradient = found.model.gradient(*found.model.misses(found.mode)) - found.mode
    assert np.abs(gradient).max() < 1.0
    assert np.abs(found.covariance @ gradient).max() < 1e-2
    assert np.log(found.hosts[1] / found.hosts[0]) == pytest.approx(np.log(1.5), abs=0.1)
