"""Posteriors of GPUs known from published numbers alone, after the packaged population: the A10, and the GB10 by engine.

python -m studies.population.published_gpus OUT [A10] [GB10]
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.sampling import Settings
from sim.cost.provenance import Origin, Provenance
from sim.cost.rates import UNITS
from sim.rates.posterior import packaged_posterior, read_posterior
from sim.rates.priors import GEMM_RATES, flops_for
from sim.specs.gpus import get_gpu
from studies.population.build import SETTINGS, sigma_of_others, write
from studies.population.published_rates import Learnt, Published, a10, gb10, gb10_llamacpp, learn_published, priors_of
from studies.population.served_rates import learn_served
from studies.program import program
from studies.replication.gb10_bursts import ENGINES, MODELS, ServedRow, in_seconds, scheduled, served_rows

Array = NDArray[np.float64]
POPULATION = "population"
SERVED_KINDS = ("architecture", "precision")  # of the served rows: gated delta nets in nvfp4


def by_population(gpu: str) -> tuple[dict[str, Array], str]:
    """(shares of the datasheet's peaks, and host costs [draw], of a GPU as the packaged population has them; that file's digest)."""
    path = packaged_posterior(POPULATION)
    assert path is not None, "packaged"
    file = read_posterior(path)
    larger = np.log(flops_for(get_gpu(gpu), "bf16")[0] / file.number("reference_flops", float("nan")))
    slope = np.exp(file.variables["slope"] * larger)
    found = {name: draws for name, draws in file.variables.items() if name in UNITS}
    return {name: np.minimum(draws * slope, 1.0) if name in GEMM_RATES else draws for name, draws in found.items()}, str(
        file.attrs["digest"]
    )


def learnt_rows(engine: str) -> list[ServedRow]:
    """The GB10's rows of an engine that may be learnt from."""
    return [row for model in MODELS for row in served_rows(engine, model) if row.learnt]


def learnt(known: Published, found: dict[str, Array], settings: Settings) -> tuple[Learnt, str]:
    """(rates, what they are learnt from in words)."""
    numbers = f"{len(known.cells)} published numbers ({known.source})"
    if known.gpu != "GB10":
        return learn_published(known, found, settings, sigma_of_others(settings.draws * settings.chains)), numbers
    rows = learnt_rows(next(name for name, engine in ENGINES.items() if engine == known.engine))
    bursts = [(scheduled(row), in_seconds(row.clients, row.printed)) for row in rows]
    return learn_served(known, bursts, priors_of(known, found), settings), f"{numbers}, {len(rows)} served rows (gb10/serving.csv)"


@program("studies.population.published_gpus", "OUT")
def main(argv: Sequence[str]) -> int:
    """Learn and write. Returns the exit code."""
    out, names = Path(argv[0]), argv[1:]
    for known in (a10(), gb10(), gb10_llamacpp()):
        if names and known.gpu not in names:
            continue
        found, population = by_population(known.gpu)
        result, numbers = learnt(known, found, SETTINGS)
        result.diagnostics.require()
        dtype = known.precision.weights
        evidence = f"posterior for {known.gpu} from {numbers} and the hierarchy over GPUs"
        kinds = SERVED_KINDS if known.gpu == "GB10" else ()
        # llama.cpp's rates are as served: no overhead of another engine's servers belongs on top
        origin = Origin.PUBLISHED if known.engine == "llamacpp" else Origin.POPULATION
        source = Provenance(origin, evidence, dtypes=(dtype,), tps=(1,), engines=(known.engine,), kinds=kinds)
        own = hashlib.sha256((population + known.cells.fingerprint() + numbers).encode()).hexdigest()
        more: dict[str, Any] = {"weight_dtype": dtype, "least": result.error}
        if known.engine == "llamacpp":
            more["engine"] = known.engine
        path = write(out, known.gpu, result.rates, source, result.sources, own, SETTINGS, result.diagnostics, **more)
        print(f"wrote {path}; the numbers lie {np.median(result.error):.1%} off", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
