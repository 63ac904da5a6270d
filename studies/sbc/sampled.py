"""Simulation-based calibration of the models that are sampled: truth and data from the model itself, then its posterior."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate import backend
from calibrate.sampling import Compiled, Graph, Settings
from studies.sbc.ranks import rank

Array = NDArray[np.float64]
KEPT = 50  # draws a truth is ranked among: few, far apart, so that they are nearly independent


@dataclass(frozen=True)
class Sampled:
    """A model whose data are pm.Data, and how to make data at a truth.

    `parameters` are ranked, each scalar of them; `observed` names the observed variables and the pm.Data each is fed from. A likelihood
    written as a potential has no variable to draw: `data` then makes the pm.Data from a truth, for which `helpers` are drawn, too.
    """

    model: Graph
    parameters: Sequence[str]
    observed: Mapping[str, str]
    helpers: Sequence[str] = ()
    data: Callable[[Mapping[str, Array], np.random.Generator], dict[str, Any]] | None = None


QUICK = Settings(draws=250, tune=500, chains=1, cores=1, target_accept=0.95)


def sampled_ranks(study: Sampled, runs: int, rng: np.random.Generator, settings: Settings = QUICK) -> dict[str, Array]:
    """Rank of every scalar parameter in every run, by name: {parameter: [run]}."""
    pm = backend.pymc()
    names = [*study.parameters, *study.helpers, *study.observed]
    graph = study.model.graph  # drawn from as it stands: truth and data of a run belong together
    drawn = pm.draw([graph[name] for name in names], draws=runs, random_seed=int(rng.integers(2**31)))
    columns = dict(zip(names, (np.asarray(each, dtype=np.float64) for each in drawn), strict=True))
    compiled = Compiled(study.model)
    found: dict[str, list[float]] = {}
    for run in range(runs):
        truth = {name: columns[name][run] for name in study.parameters}
        data: dict[str, Any] = {feed: columns[name][run] for name, feed in study.observed.items()}
        if study.data is not None:
            data |= study.data({name: columns[name][run] for name in names}, rng)
        posterior = compiled.sample(replace(settings, seed=int(rng.integers(2**31))), data).posterior
        for name, values in truth.items():
            draws = np.asarray(posterior[name].values, dtype=np.float64).reshape(-1, *np.shape(values))
            kept = draws[np.linspace(0, len(draws) - 1, KEPT).round().astype(int)]
            for place in np.ndindex(np.shape(values)):
                label = name + "".join(f"[{i}]" for i in place)
                found.setdefault(label, []).append(rank(float(values[place]), kept[(slice(None), *place)], rng))
    return {name: np.array(ranks) for name, ranks in found.items()}
