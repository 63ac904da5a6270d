"""One simulation-based calibration for each model of the suite: a design of the size that the packaged data have, and runs over it.

step        rates and model error of the step-time model, cells of two models
population  hierarchy over GPUs: four with kernels, two of them with an engine
knees       knees over a predictor's score, censored at batch 128
recall      hierarchical logistic model, in the cells of the published trials
memory      memory beside weights and KV, at the packaged engine starts
served      what serving changes: c0, the share of host cost that shows, the API server's latency
requests    rates learnt from a served log through the simulator (an approximation: see calibrate.logs.learn)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from calibrate.sampling import Graph, Settings
from studies.sbc.ranks import rank
from studies.sbc.sampled import KEPT, QUICK, Sampled, sampled_ranks
from studies.sbc.served import request_ranks, served_ranks

Array = NDArray[np.float64]
Study = Callable[[int, np.random.Generator, Settings], dict[str, Array]]
KNEES, LAST_BATCH = 25, 128.0
GPUS, WITH_ENGINE = ("A10", "A100-80G", "H100", "B200"), ("A100-80G", "H100")
KERNEL_ERROR, ENGINE_ERROR = 0.06, 0.03


def step(runs: int, rng: np.random.Generator, settings: Settings = QUICK) -> dict[str, Array]:
    """Every rate that the cells show, and the model errors."""
    from calibrate.steps.fit import sampled
    from calibrate.steps.laplace import laplace
    from calibrate.steps.random_rates import prior_draws
    from calibrate.steps.step_model import log_times, predictive, sigma_draws, step_model
    from sim.rates.priors import priors
    from sim.specs.gpus import get_gpu
    from sim.specs.precision import Precision
    from studies.sbc.cells import step_cells

    declared = priors(get_gpu("H100"), Precision(), published=False)
    truths, cells, found = prior_draws(declared, runs, rng), step_cells(), dict[str, list[float]]()
    for run in range(runs):
        sigma = sigma_draws(1, rng)
        seen = replace(cells, step_s=predictive(cells, log_times(cells, truths.at(run)), sigma, rng)[0])
        model = step_model(seen, declared)
        scores, _ = sampled(laplace(model), replace(settings, seed=int(rng.integers(2**31))))
        kept = scores.reshape(-1, model.size)[:: max(1, settings.draws * settings.chains // KEPT)]
        drawn = model.rates(kept[:, model.parts[0]])
        for name, values in drawn.items():
            found.setdefault(name, []).append(rank(float(getattr(truths, name)[run]), values, rng))
        for i, values in enumerate(model.sigma(kept[:, model.parts[2]]).T):
            found.setdefault(f"sigma[{i}]", []).append(rank(float(sigma[0, i]), values, rng))
    return {name: np.array(ranks) for name, ranks in found.items()}


def population(runs: int, rng: np.random.Generator, settings: Settings = QUICK) -> dict[str, Array]:
    """Means and spreads over GPUs, the stack's loss and how shares change with size; a GPU's own are integrated out (see its tests)."""
    from calibrate.steps.random_rates import BY_ENGINES
    from studies.population.hierarchy import population_model
    from studies.population.kernel_efficiency import BY_KERNELS, Estimate

    kernels = [Estimate(gpu, rate, 0.0, KERNEL_ERROR, 10) for gpu in GPUS for rate in BY_KERNELS]
    engines = [Estimate(gpu, rate, 0.0, ENGINE_ERROR, 10) for gpu in WITH_ENGINE for rate in BY_ENGINES]
    model = population_model(kernels, engines)
    observed = {f"{name}_seen": f"{name}_values" for name in ("kernel", "engine")}
    parameters = ["mean", "between", "loss", "slope_of_products"]
    return sampled_ranks(Sampled(Graph(model), parameters, observed), runs, rng, replace(settings, target_accept=0.95))


def knees(runs: int, rng: np.random.Generator, settings: Settings = QUICK) -> dict[str, Array]:
    """Intercept, slope and scatter, with every knee past batch 128 censored."""
    from studies.knees.censored import knee_model, standardised

    batch = np.geomspace(2.0, 100.0, KNEES)
    model = knee_model(batch, np.zeros(KNEES, dtype=bool), standardised(rng.normal(size=KNEES)))
    model["upper"].set_value(np.full(KNEES, np.log(LAST_BATCH)))
    return sampled_ranks(Sampled(Graph(model), ["intercept", "slope", "sigma"], {"log_knee": "log_batch"}), runs, rng, settings)


def recall(runs: int, rng: np.random.Generator, settings: Settings = QUICK) -> dict[str, Array]:
    """Levels, slopes and spreads, from counts in the cells and of the size of the published ones."""
    from sim.closed_form.recall import REFERENCE_LOG2_CONTEXT, REFERENCE_LOG2_K
    from studies.needle_recall.logistic import cell_label, recall_model
    from studies.needle_recall.needle_trials import Evidence, published

    trials = tuple(replace(t, successes=float(round(t.successes))) for t in published().trials)
    model = recall_model(Evidence(trials, (), (), ()))
    texts, models, cells = (list(model.coords[dim]) for dim in ("haystack", "model", "cell"))
    h = np.array([texts.index(t.haystack) for t in trials])
    m = np.array([models.index(t.model) for t in trials])
    c = np.array([cells.index(cell_label(t.model, t.haystack, t.context_tokens, t.k_blocks)) for t in trials])
    k = np.array([np.log2(t.k_blocks) - REFERENCE_LOG2_K for t in trials])
    n = np.array([np.log2(t.context_tokens) - REFERENCE_LOG2_CONTEXT for t in trials])
    trial_counts = np.array([t.trials for t in trials])

    def found(truth: Mapping[str, Array], rng: np.random.Generator) -> dict[str, Any]:
        eta = truth["intercept"][h] + truth["model_offset"][m] + truth["budget_slope"][h] * k - truth["context_slope"][h] * n
        return {"found": rng.binomial(trial_counts, expit(eta + truth["cell_sd"] * truth["cell_z"][c])).astype(float)}

    parameters = [
        "level",
        "haystack_sd",
        "intercept",
        "budget_log_mean",
        "budget_log_sd",
        "budget_slope",
        "model_sd",
        "context_log_mean",
        "context_log_sd",
    ]
    parameters += ["context_slope"]
    study = Sampled(Graph(model), [*parameters, "cell_sd"], {}, ("model_offset", "cell_z"), data=found)
    return sampled_ranks(study, runs, rng, replace(settings, target_accept=0.99))


def memory(runs: int, rng: np.random.Generator, settings: Settings = QUICK) -> dict[str, Array]:
    """The fixed part, what devices and servers keep, copies of the two buffers, and what the line misses by build and by start."""
    from studies.engine_memory import memory_model, packaged_runs

    model = memory_model(packaged_runs())
    parameters = ["fixed", "kept", "server", "mlp_copies", "logit_copies", "scale", "noise"]
    return sampled_ranks(Sampled(Graph(model), parameters, {"overhead_gb": "overhead"}), runs, rng, replace(settings, target_accept=0.99))


STUDIES: dict[str, Study] = {
    "step": step,
    "population": population,
    "knees": knees,
    "recall": recall,
    "memory": memory,
    "served": served_ranks,
    "requests": request_ranks,
}
