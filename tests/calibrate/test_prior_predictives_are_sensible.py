"""Before any data, no model says what nobody would believe: negative times, ten-second decode steps of a 7B, knees of no batch at all."""

from functools import partial

import numpy as np
import pytest
from scipy.special import expit

from calibrate.logs.learn import HOST
from calibrate.served.launches import HOSTS_SD, LOADS_SD
from calibrate.steps.random_rates import BY_ENGINES, calibration_priors, prior_draws, value
from calibrate.steps.step_model import log_times, predictive, sigma_draws
from sim.cost.batch import DENSE, decode_batch, mixed_batch
from sim.cost.rates import UNITS, Rates
from sim.cost.step_time import step_time_s
from sim.cost.work import iteration_work
from sim.rates.priors import priors
from sim.specs.attention_policy import blocks
from sim.specs.gpus import get_gpu, list_gpus
from sim.specs.models import get_model
from sim.specs.precision import Precision
from studies.engine_memory import memory_model, packaged_runs, turned
from studies.needle_recall.logistic import recall_model
from studies.needle_recall.needle_trials import published
from studies.population.hierarchy import PARAMETERS, bounded, population_model
from studies.population.hierarchy import drawn as rates_of_a_gpu
from studies.population.kernel_efficiency import Estimate
from studies.sbc.cells import step_cells

DRAWS = 2000
SEVEN_B = get_model("Qwen2.5-7B")


def drawn(model, names):
    import pymc as pm

    return dict(zip(names, pm.draw([model[name] for name in names], draws=DRAWS, random_seed=1), strict=True))


def decode_s(rates, batch=1.0, context=4096.0):
    return step_time_s(iteration_work(SEVEN_B, decode_batch(SEVEN_B, batch, context), Precision()), rates, np)


@pytest.mark.parametrize("declared", [partial(priors, published=False), calibration_priors], ids=["datasheet", "population"])
@pytest.mark.parametrize("name", list_gpus())
def test_a_7b_decode_step_takes_as_long_as_its_weights_at_peak_at_least_and_less_than_a_second(name, declared):
    gpu = get_gpu(name)
    rates = prior_draws(declared(gpu, Precision()), DRAWS, np.random.default_rng(1))
    times = decode_s(rates)
    work = iteration_work(SEVEN_B, decode_batch(SEVEN_B, 1.0, 4096.0), Precision())
    weights = work.linear_bytes + work.head_bytes
    assert (times > weights / gpu.memory_bandwidth).all()
    assert np.quantile(times, 0.999) < 1.0
    work = iteration_work(SEVEN_B, mixed_batch(SEVEN_B, [], [(2048, 2048, True)]), Precision())
    prefill = step_time_s(work, rates, np)
    assert (prefill > 0).all()
    assert np.quantile(prefill, 0.999) < max(10.0, 5 * work.linear_flops / max(filter(None, gpu.flops.values())))  # laptops compute slowly


MOE = get_model("Qwen3-Coder-30B-A3B")
HYBRID = get_model("Qwen3-Next-80B-A3B")
MIXED = ([2048.0] * 8, [(512, 512, True)])
# (model, iteration, attention, GPUs, the longest that anybody would believe in seconds)
ITERATIONS = {
    "decode over 2 GPUs": (SEVEN_B, decode_batch(SEVEN_B, 1.0, 4096.0), DENSE, 2, 1.0),
    "mixed over 2 GPUs": (SEVEN_B, mixed_batch(SEVEN_B, *MIXED), DENSE, 2, 2.0),
    "prefill over 2 GPUs": (SEVEN_B, mixed_batch(SEVEN_B, [], [(2048, 2048, True)]), DENSE, 2, 10.0),
    "decode of experts": (MOE, decode_batch(MOE, 1.0, 4096.0), DENSE, 1, 1.0),
    "mixed of experts": (MOE, mixed_batch(MOE, *MIXED), DENSE, 1, 2.0),
    "prefill of experts": (MOE, mixed_batch(MOE, [], [(2048, 2048, True)]), DENSE, 1, 10.0),
    "mixed of experts over 2 GPUs": (MOE, mixed_batch(MOE, *MIXED), DENSE, 2, 2.0),
    "decode with recurrent state": (HYBRID, decode_batch(HYBRID, 1.0, 4096.0), DENSE, 1, 1.0),
    "sparse decode at 1M": (SEVEN_B, decode_batch(SEVEN_B, 1.0, 2.0**20, blocks(8)), blocks(8), 1, 1.0),
    "tiered decode at 1M": (SEVEN_B, decode_batch(SEVEN_B, 1.0, 2.0**20, blocks(8, "host")), blocks(8, "host"), 1, 2.0),
}


@pytest.mark.parametrize("declared", [partial(priors, published=False), calibration_priors], ids=["datasheet", "population"])
@pytest.mark.parametrize("name", ITERATIONS)
def test_iterations_of_every_kind_take_as_long_as_their_weights_at_peak_at_least_and_never_ten_seconds(name, declared):
    model, shape, policy, tp, longest_s = ITERATIONS[name]
    work = iteration_work(model, shape, Precision(), policy, tp)
    for gpu in map(get_gpu, list_gpus()):
        times = step_time_s(work, prior_draws(declared(gpu, Precision()), DRAWS, np.random.default_rng(1)), np)
        assert (times > (work.linear_bytes + work.head_bytes + work.expert_bytes) / gpu.memory_bandwidth).all(), gpu.name
        assert np.quantile(times, 0.999) < longest_s, gpu.name


def test_what_the_formula_misses_before_any_data_is_at_most_a_factor():
    """Model error and noise floor as the step model draws them: log-t of five degrees of freedom about the price."""
    rng = np.random.default_rng(2)
    sigma = sigma_draws(DRAWS, rng)
    cells = step_cells()
    times = log_times(cells, prior_draws(priors(get_gpu("H100"), Precision(), published=False), DRAWS, rng))
    factor = predictive(cells, times, sigma, rng) / np.exp(times)
    assert (factor > 0).all()
    assert 0.5 < np.quantile(factor, 0.005) < np.quantile(factor, 0.995) < 2.0


def test_a_server_launches_within_a_factor_of_what_others_do():
    z = np.random.default_rng(12).standard_normal(DRAWS)
    at_low_load, anywhere = np.exp(HOSTS_SD * z), np.exp(np.hypot(HOSTS_SD, LOADS_SD) * z)
    assert 0.5 < np.quantile(at_low_load, 0.001) < np.quantile(at_low_load, 0.999) < 2.0
    assert 0.4 < np.quantile(anywhere, 0.001) < np.quantile(anywhere, 0.999) < 2.5


def test_a_gpu_that_no_one_measured_has_shares_of_its_datasheet_and_a_step_below_a_second():
    engines = [Estimate("H100", rate, 0.0, 0.05, 10) for rate in BY_ENGINES]
    found = drawn(population_model([], engines), PARAMETERS)
    rates = tuple(name for name in UNITS if name in BY_ENGINES)
    logs = rates_of_a_gpu(rates, found, "L40S", (), (), np.random.default_rng(0))
    gpu = get_gpu("L40S")
    declared = priors(gpu, Precision(), published=False)
    values = {name: np.full(DRAWS, declared[name].median) for name in UNITS}
    for i, (name, peak) in enumerate(zip(rates, bounded(rates), strict=True)):
        drawn_values = np.exp(logs[:, i])
        assert not peak or 0.2 < np.median(drawn_values) < 1.0, name
        values[name] = declared[name].upper * np.minimum(drawn_values, 1.0) if peak else drawn_values
    times = decode_s(Rates(**values))
    assert (times > 0).all()
    assert np.quantile(times, 0.999) < 1.0


def test_a_knee_lies_between_one_and_thousands():
    import pymc as pm

    from studies.knees.censored import knee_model

    model = knee_model(np.full(20, 10.0), np.zeros(20, dtype=bool), np.linspace(-1.7, 1.7, 20))
    model["upper"].set_value(np.full(20, np.log(512.0)))
    knees = np.exp(pm.draw(model["log_knee"], draws=DRAWS, random_seed=1))
    assert knees.max() <= 512.0 * (1 + 1e-12)  # what lies beyond is censored there
    middle = knees[:, 9]
    assert 3 < np.median(middle) < 40
    assert np.mean((middle > 0.5) & (middle < 512)) > 0.9


def test_recall_is_open_before_any_trial_and_falls_with_context():
    evidence = published()
    truth = drawn(recall_model(evidence), ["level", "haystack_sd", "context_log_mean", "budget_log_mean"])
    rng = np.random.default_rng(0)
    level = truth["level"] + truth["haystack_sd"] * rng.standard_normal(DRAWS)
    near, far = (expit(level - np.exp(truth["context_log_mean"]) * (context - 15)) for context in (13, 20))
    assert 0.05 < np.mean(near < 0.9) < 0.6  # neither sure of success nor of failure
    assert np.mean(far < near) == 1.0
    assert np.ptp(np.quantile(far, [0.05, 0.95])) > 0.8
    assert np.quantile(np.exp(truth["budget_log_mean"]), 0.99) < 5  # a doubling of the budget is worth a few logits at most


def test_an_engine_takes_gigabytes_beside_weights_and_never_all_of_the_card():
    runs = packaged_runs()
    overhead_gb = drawn(memory_model(runs), ["overhead_gb"])["overhead_gb"] @ turned(runs)
    assert np.mean(overhead_gb > 0) > 0.98
    assert np.quantile(overhead_gb, 0.99) < 12
    blocks = np.array([(run.left_bytes - 1e9 * overhead_gb[:, i]) / run.block_bytes for i, run in enumerate(runs)])
    assert np.quantile(blocks, 0.001) > 0


def test_an_api_server_takes_milliseconds():
    times = value(HOST, np.random.default_rng(0).standard_normal(DRAWS))
    assert (times > 0).all()
    assert np.quantile(times, 0.999) < 0.2
