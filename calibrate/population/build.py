"""Build the packaged population: from kernel tables in a folder and the packaged posteriors of measured GPUs.

`python -m calibrate.population.build KERNEL_TABLES OUT` writes one posterior per GPU seen only through kernels, one per GPU known from
published numbers alone, and `population.nc` for every other, and prints how well each GPU is predicted when it is left out.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.artifacts import write_posterior
from calibrate.population.kernels import Estimate, estimates
from calibrate.population.model import COSTS, REFERENCE, SHARES, SIZED, Population, learn, size
from calibrate.population.published import Learnt, Published, learn_published, population_priors, published
from calibrate.sampling import Settings, chosen
from calibrate.sources import engine_grids
from calibrate.steps.approximate import HOST_SD
from calibrate.steps.cells import KINDS, concatenate, unmeasured
from calibrate.steps.fit import Scores, hosts_of, intervals, score
from sim.errors import SimctlError
from sim.posterior import POPULATION, STEP_TIME, packaged_posterior, read_posterior
from sim.precision import Precision
from sim.priors import flops_for, prior_rates, priors
from sim.rates import UNITS, Rates
from sim.specs.gpus import get_gpu

Array = NDArray[np.float64]
MEASURED = ("H100", "H200")
SETTINGS = Settings(draws=1500, tune=1500, chains=4, seed=0, target_accept=0.97)
KEPT_DRAWS = 800
# An engine's rate is known to the formula's own fit, not better than this across runs of the machine.
LEAST_ERROR = 0.03


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One GPU predicted without any measurement of it: on which surface, and the scores."""

    gpu: str
    surface: str
    scores: Scores


def from_posterior(gpu: str) -> list[Estimate]:
    """What a packaged posterior says of shares and host costs; only rates that it learnt."""
    path = packaged_posterior(gpu)
    if path is None:
        raise SimctlError(f"no packaged posterior of {gpu}: calibrate it first")
    file, declared = read_posterior(path), priors(get_gpu(gpu), Precision(), published=False)
    found = []
    for rate in (*SHARES, *COSTS):
        if file.basis[rate].startswith("learnt"):
            values = np.log(file.variables[rate] / (declared[rate].upper if rate in SHARES else 1.0))
            found.append(Estimate(gpu, rate, float(np.median(values)), max(float(np.std(values)), LEAST_ERROR), values.size))
    return found


def leave_one_out(kernels: Sequence[Estimate], engines: Sequence[Estimate], settings: Settings) -> list[LeftOut]:
    """Each GPU predicted from the others: whole engine grids where they exist, kernel rates elsewhere."""
    results = []
    for gpu in sorted({e.gpu for e in (*kernels, *engines)}):
        others = learn([e for e in kernels if e.gpu != gpu], [e for e in engines if e.gpu != gpu], settings)
        rates = others.rates(gpu)
        if gpu in MEASURED:
            results.append(LeftOut(gpu, "engine grid", _on_grid(gpu, rates)))
        else:
            results.append(LeftOut(gpu, "kernel rates", _on_kernels([e for e in kernels if e.gpu == gpu], others)))
    return results


def _on_grid(gpu: str, found: Mapping[str, Array]) -> Scores:
    spec = get_gpu(gpu)
    cells = unmeasured(concatenate([g.cells for g in engine_grids(spec) if g.tp == 1]))
    size = len(found["beta"])
    rates = Rates(**_absolute(spec.name, found, size))
    hosts = hosts_of(cells, (), np.ones((size, 0)), HOST_SD, np.random.default_rng(2))
    low, median, high = intervals(cells, rates, _sigma(size, exclude=gpu), np.random.default_rng(1), hosts)
    return score(cells.step_s, low, median, high)


def _on_kernels(seen: Sequence[Estimate], others: Population) -> Scores:
    rng = np.random.default_rng(1)
    rows = []
    for estimate in seen:
        place = SHARES.index(estimate.rate)
        mean, between, slope = (others.found[n][:, place] for n in ("share_mean", "share_sd", "slope"))
        mean = mean + slope * size(estimate.gpu)
        noise = estimate.error * rng.standard_normal(mean.size)
        predicted = np.exp(-(mean + between * rng.standard_normal(mean.size) + noise))  # seconds per unit of work at the peak
        rows.append((np.exp(-estimate.log_share), *np.quantile(predicted, [0.05, 0.5, 0.95])))
    observed, low, median, high = np.array(rows).T
    return score(observed, low, median, high)


def _absolute(gpu: str, found: Mapping[str, Array], size: int) -> dict[str, Array]:
    """All rates of a GPU [size]: learnt shares times the datasheet, learnt costs, and declared priors for the rest."""
    spec = get_gpu(gpu)
    declared = priors(spec, Precision(), published=False)
    rest = prior_rates(spec, Precision(), draws=size)
    values = {name: np.asarray(getattr(rest.draws, name), dtype=float) for name in UNITS}
    return values | {name: draws * (declared[name].upper if name in SHARES else 1.0) for name, draws in found.items()}


def _sigma(size: int, exclude: str = "") -> Array:
    """Model error [size, kind] of the measured GPUs, pooled."""
    files = [packaged_posterior(g) for g in MEASURED if g != exclude]
    pooled = np.concatenate([read_posterior(f).variables["sigma"] for f in files if f is not None])
    return np.asarray(pooled[np.random.default_rng(3).integers(0, len(pooled), size)], dtype=float)


def write(out: Path, gpu: str, population: Population, kernels: Sequence[Estimate], fingerprint: str) -> Path:
    """Posterior file of a GPU seen only through kernels, or (gpu `*`) of the population."""
    import xarray as xr

    found = population.rates(gpu)
    size = len(found["beta"])
    values = dict(found) if gpu == POPULATION else _absolute(gpu, found, size)
    chains = population.settings.chains
    variables: dict[str, Any] = {n: (("chain", "draw"), np.asarray(v).reshape(chains, -1)) for n, v in values.items()}
    if gpu == POPULATION:  # for a GPU of whatever size: how the shares of matrix products change with it
        slope = population.found["slope"][:, int(np.argmax(SIZED))]
        variables["slope"] = (("chain", "draw"), slope.reshape(chains, -1))
    variables |= {"sigma": (("chain", "draw", "kind"), _sigma(size).reshape(chains, -1, len(KINDS)))}
    calls = sum(e.calls for e in kernels if e.gpu == gpu)
    own = f"{calls} kernel latencies of {gpu} and " if calls else ""
    why = f"hierarchy over GPUs: {own}engine grids of {' and '.join(MEASURED)}"
    learnt = dict.fromkeys((*SHARES, *COSTS), why)
    basis = learnt if gpu == POPULATION else {n: learnt.get(n, priors(get_gpu(gpu), Precision())[n].basis) for n in UNITS}
    return write_posterior(
        out / ("population.nc" if gpu == POPULATION else f"{packaged_name(gpu)}.nc"),
        xr.Dataset(variables, coords={"kind": list(KINDS)}),
        family=STEP_TIME,
        gpu=gpu,
        summary=f"posterior for {'GPUs never measured' if gpu == POPULATION else gpu} from the {why}",
        basis=basis,
        data_fingerprint=fingerprint,
        diagnostics=population.diagnostics,
        settings=population.settings,
        sampler=chosen(population.settings.sampler),
        thin_to=KEPT_DRAWS,
        weight_dtype="bf16",
        host_sd=HOST_SD,
        reference_flops=flops_for(get_gpu(REFERENCE), "bf16")[0],
    )


def write_published(out: Path, known: Published, learnt: Learnt, population: Population, fingerprint: str) -> Path:
    """Posterior file of a GPU known from published numbers."""
    import xarray as xr

    chains = population.settings.chains
    variables: dict[str, Any] = {n: (("chain", "draw"), v.reshape(chains, -1)) for n, v in learnt.rates.items()}
    variables["sigma"] = (("chain", "draw", "kind"), learnt.sigma.reshape(chains, -1, len(KINDS)))
    why = f"learnt from {len(known.cells)} published numbers ({known.source})"
    declared = population_priors(population, known.gpu, known.precision)
    return write_posterior(
        out / f"{packaged_name(known.gpu)}.nc",
        xr.Dataset(variables, coords={"kind": list(KINDS)}),
        family=STEP_TIME,
        gpu=known.gpu,
        summary=f"posterior for {known.gpu} from {len(known.cells)} published numbers ({known.source}) and the hierarchy over GPUs",
        basis={n: why if n in learnt.learnt else declared[n].basis for n in UNITS},
        data_fingerprint=hashlib.sha256((fingerprint + known.cells.fingerprint()).encode()).hexdigest(),
        diagnostics=learnt.diagnostics,
        settings=population.settings,
        sampler=chosen(population.settings.sampler),
        thin_to=KEPT_DRAWS,
        engine=known.engine,
        weight_dtype=known.precision.weights,
        host_sd=HOST_SD,
    )


def packaged_name(gpu: str) -> str:
    """File stem of a packaged posterior."""
    from sim.specs.lookup import key

    return key(gpu)


def main(argv: Sequence[str]) -> int:
    """Build, judge and write. Returns the exit code."""
    folder, out = Path(argv[0]), Path(argv[1])
    kernels = estimates(folder)
    engines = [e for gpu in MEASURED for e in from_posterior(gpu)]
    fingerprint = hashlib.sha256(repr((kernels, engines)).encode()).hexdigest()
    print("left out  predicted     n    median  p90     worst   90% interval covers")
    for row in leave_one_out(kernels, engines, SETTINGS):
        s = row.scores
        print(f"{row.gpu:9} {row.surface:13} {s.n:<4} {s.median:7.2%} {s.p90:7.2%} {s.worst:7.2%} {s.coverage:.0%}", flush=True)
    population = learn(kernels, engines, SETTINGS)
    population.diagnostics.require()
    only_kernels = sorted({e.gpu for e in kernels} - set(MEASURED))
    for gpu in (*only_kernels, POPULATION):
        print(f"wrote {write(out, gpu, population, kernels, fingerprint)}")
    for known in published():
        learnt = learn_published(known, population, SETTINGS, _sigma(4 * SETTINGS.draws))
        learnt.diagnostics.require()
        print(f"wrote {write_published(out, known, learnt, population, fingerprint)}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except (SimctlError, IndexError) as problem:
        print(f"calibrate.population.build: {problem or 'needs KERNEL_TABLES OUT'}", file=sys.stderr)
        sys.exit(1)
