"""Packaged population of GPUs: posteriors from kernel efficiencies and engine posteriors; left-out GPUs judged.

    python -m studies.population.build OUT [--judge]

Writes one posterior per GPU seen only through kernels, and `population.nc` for all others (studies.population.published_gpus goes on from
there); in OUT/left-out the measured GPUs as if no engine had been stepped on them.
With --judge it prints how well each GPU is predicted when it is left out, minutes more.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.artifacts import write_posterior
from calibrate.measured_files import engine_grids
from calibrate.sampling import Diagnostics, Settings
from calibrate.steps.held_out import Scores, hosts_of, intervals, score
from calibrate.steps.iterations import KINDS, concatenate
from calibrate.steps.laplace import HOST_SD
from sim.cost.provenance import Origin, Provenance
from sim.cost.rates import UNITS, Rates
from sim.errors import SimctlError
from sim.rates.posterior import POPULATION, STEP_TIME, packaged_posterior, read_posterior
from sim.rates.priors import GEMM_RATES, flops_for, prior_rates, priors
from sim.specs.gpus import get_gpu
from sim.specs.lookup import key
from sim.specs.precision import Precision
from studies.population.hierarchy import REFERENCE, Population, bounded, drawn, learn
from studies.population.kernel_efficiency import Efficiency, Estimate, estimates, read_efficiencies
from studies.program import program

Array = NDArray[np.float64]
MEASURED = ("H100", "H200")
SETTINGS = Settings(draws=800, tune=800, chains=4, seed=0, target_accept=0.97)
KEPT_DRAWS = 800
LEAST_ERROR = 0.03  # log sd of an engine's rate: not known better than this across runs of the machine


def from_posterior(gpu: str) -> list[Estimate]:
    """Estimates of the rates that a GPU's packaged posterior learnt from engines stepped in process."""
    path = packaged_posterior(gpu)
    if path is None:
        raise SimctlError(f"no packaged posterior of {gpu}: calibrate it first")
    file, declared = read_posterior(path), priors(get_gpu(gpu), Precision(), published=False)
    found = []
    for rate in UNITS:
        if file.sources[rate].origin is Origin.IN_PROCESS:
            peak = declared[rate].upper if np.isfinite(declared[rate].upper) else 1.0
            values = np.log(file.variables[rate] / peak)
            found.append(Estimate(gpu, rate, float(np.median(values)), max(float(np.std(values)), LEAST_ERROR), values.size))
    return found


def leave_one_out(kernels: Sequence[Estimate], engines: Sequence[Estimate], settings: Settings) -> list[tuple[str, str, Scores]]:
    """(GPU, what is predicted, scores) of each GPU from all others: whole engine grids where they exist, kernel rates elsewhere."""
    results = []
    for gpu in sorted({e.gpu for e in (*kernels, *engines)}):
        others = learn([e for e in kernels if e.gpu != gpu], [e for e in engines if e.gpu != gpu], settings)
        if gpu in MEASURED:
            results.append((gpu, "engine grid", _on_grid(gpu, others)))
        else:
            results.append((gpu, "kernel rates", _on_kernels([e for e in kernels if e.gpu == gpu], others)))
    return results


def _on_grid(gpu: str, others: Population) -> Scores:
    cells = concatenate([g.cells for g in engine_grids(get_gpu(gpu)) if g.tp == 1]).unmeasured()
    # GEMMs timed alone are no engine: typical ones of the GPU are known, and their roofline
    found = _absolute(gpu, {name: draws for name, draws in others.of(gpu).items() if name != "beta"})
    draws = len(found["beta"])
    hosts = hosts_of(cells, (), np.ones((draws, 0)), HOST_SD, np.random.default_rng(2))
    low, median, high = intervals(cells, Rates(**found), sigma_of_others(draws, exclude=gpu), np.random.default_rng(1), hosts)
    return score(cells.step_s, low, median, high)


def _on_kernels(seen: Sequence[Estimate], others: Population) -> Scores:
    rng, found = np.random.default_rng(1), dict(others.found)
    # kernels alone: no loss of an engine's; ENGINE_NOISE is small beside what GPUs differ by
    found["stack"] = np.zeros_like(found["stack"])
    values = drawn(others.rates, found, seen[0].gpu, (), (), rng)
    rows = []
    for e in seen:
        if e.rate in others.rates:
            logs = -(values[:, others.rates.index(e.rate)] + e.error * rng.standard_normal(len(values)))  # seconds per unit at the peak
            rows.append((np.exp(-e.log_value), *np.quantile(np.exp(logs), [0.05, 0.5, 0.95])))
    observed, low, median, high = np.array(rows).T
    return score(observed, low, median, high)


def _absolute(gpu: str, found: Mapping[str, Array]) -> dict[str, Array]:
    """All rates of a GPU [draw]: shares times the datasheet's peaks, other rates found as they are, declared priors for the rest."""
    spec = get_gpu(gpu)
    declared = priors(spec, Precision(), published=False)
    rest = prior_rates(spec, Precision(), draws=len(next(iter(found.values()))))
    values = {name: np.asarray(getattr(rest.draws, name), dtype=float) for name in UNITS}
    for (name, draws), peak in zip(found.items(), bounded(tuple(found)), strict=True):
        values[name] = draws * (declared[name].upper if peak else 1.0)
    return values


def sigma_of_others(draws: int, exclude: str = "") -> Array:
    """Model error [draw, kind] of the measured GPUs, pooled."""
    files = [packaged_posterior(g) for g in MEASURED if g != exclude]
    pooled = np.concatenate([read_posterior(f).variables["sigma"] for f in files if f is not None])
    return np.asarray(pooled[np.random.default_rng(3).integers(0, len(pooled), draws)], dtype=float)


def write(
    out: Path, gpu: str, found: Mapping[str, Array], source: Provenance, sources: Mapping[str, Provenance], data: str, how: Settings,
    diagnostics: Diagnostics, exclude: str = "", least: Array | float = 0.0, engine: str = "", **more: Any,
) -> Path:  # fmt: skip
    """Posterior file of a GPU, or (gpu `*`) of the population, of draws `found` [draw], in a folder or as a file.

    Model errors are those of the measured GPUs without `exclude`, of `least` (a number or [draw]) at least; `engine` names one beside the
    GPU's default.
    """
    import xarray as xr

    sigma = np.maximum(sigma_of_others(len(found["beta"]), exclude), np.reshape(least, (-1, 1)))
    name = "population" if gpu == POPULATION else key(f"{gpu}-{engine}")
    chains = how.chains
    variables: dict[str, Any] = {n: (("chain", "draw"), np.asarray(v).reshape(chains, -1)) for n, v in found.items()}
    variables["sigma"] = (("chain", "draw", "kind"), sigma.reshape(chains, -1, len(KINDS)))
    return write_posterior(
        out / f"{name}.nc" if out.is_dir() else out,
        xr.Dataset(variables, coords={"kind": list(KINDS)}),
        family=STEP_TIME,
        gpu=gpu,
        source=source,
        sources=sources,
        data_fingerprint=data,
        diagnostics=diagnostics,
        settings=how,
        thin_to=KEPT_DRAWS,
        host_sd=HOST_SD,
        **more,
    )


def write_pooled(out: Path, gpu: str, population: Population, data: str) -> Path:
    """Posterior file of a GPU seen only through kernels, or (gpu `*`) of the population."""
    found = population.of(gpu)
    calls = sum(e.calls for e in population.kernels if e.gpu == gpu)
    own = f"{calls} kernel latencies of {gpu} and " if calls else ""
    stepped = sorted({e.gpu for e in population.engines})
    why = f"hierarchy over GPUs: {own}engine grids of {' and '.join(stepped)}"
    pooled = Provenance(Origin.POPULATION, why, dtypes=("bf16",), tps=(1,))
    source = replace(pooled, evidence=f"posterior for {'GPUs never measured' if gpu == POPULATION else gpu} from the {why}")
    more: dict[str, Any] = {"weight_dtype": "bf16", "reference_flops": flops_for(get_gpu(REFERENCE), "bf16")[0]}
    sources = dict.fromkeys(found, pooled)
    if gpu != POPULATION:
        declared = priors(get_gpu(gpu), Precision())
        found, sources = _absolute(gpu, found), {name: sources.get(name, declared[name].provenance) for name in UNITS}
    elif sized := [population.rates.index(rate) for rate in GEMM_RATES if rate in population.rates]:
        found["slope"] = population.found["slope"][:, sized[0]]  # of shares of GEMMs over the GPU's size
    return write(out, gpu, found, source, sources, data, population.settings, population.diagnostics, "" if gpu in stepped else gpu, **more)


def write_left_out(out: Path, known: Sequence[Efficiency], engines: Sequence[Estimate]) -> Iterator[Path]:
    """Posterior files of the measured GPUs as if no engine had been stepped on them, to judge predictions of others by: with their kernels,
    and (in `datasheet`) without.
    """
    for gpu in MEASURED:
        kernels, elsewhere = estimates(known, gpu), [e for e in engines if e.gpu != gpu]
        for folder, seen in ((out, kernels), (out / "datasheet", [e for e in kernels if e.gpu != gpu])):
            folder.mkdir(parents=True, exist_ok=True)
            others = learn(seen, elsewhere, SETTINGS)
            others.diagnostics.require()
            yield write_pooled(folder, gpu, others, fingerprint(seen, elsewhere))


def fingerprint(kernels: Sequence[Estimate], engines: Sequence[Estimate]) -> str:
    """sha256 of estimates, as hex."""
    return hashlib.sha256(repr((kernels, engines)).encode()).hexdigest()


@program("studies.population.build", "OUT")
def main(argv: Sequence[str]) -> int:
    """Build, judge and write. Returns the exit code."""
    out, known = Path(argv[0]), read_efficiencies()
    engines = [e for gpu in MEASURED for e in from_posterior(gpu)]
    kernels = estimates(known)
    data = fingerprint(kernels, engines)
    population = learn(kernels, engines, SETTINGS)
    population.diagnostics.require()
    for gpu in (*sorted({e.gpu for e in kernels} - set(MEASURED)), POPULATION):
        print(f"wrote {write_pooled(out, gpu, population, data)}", flush=True)
    for path in write_left_out(out / "left-out", known, engines):
        print(f"wrote {path}", flush=True)
    if "--judge" not in argv:
        return 0
    print("left out  predicted     n    median  p90     worst   90% interval covers")
    for gpu, predicted, s in leave_one_out(kernels, engines, SETTINGS):
        print(f"{gpu:9} {predicted:13} {s.n:<4} {s.median:7.2%} {s.p90:7.2%} {s.worst:7.2%} {s.coverage:.0%}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
