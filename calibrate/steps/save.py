"""Turn a step-time calibration into a posterior file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.artifacts import write_posterior
from calibrate.steps.calibration import Calibration, describe
from calibrate.steps.grid_cells import Grid
from calibrate.steps.iterations import KINDS, concatenate
from sim.cost.provenance import Origin, Provenance
from sim.cost.rates import UNITS
from sim.rates.posterior import STEP_TIME
from sim.specs.decode_stack import STACKS


def save(path: Path, result: Calibration, grids: Sequence[Grid], weight_dtype: str, thin_to: int | None = None) -> Path:
    """Write the posterior of `result`: all rates and the model error by kind, with provenance. OSError when it cannot."""
    import xarray as xr

    posterior = result.posterior

    def by_chain(values: Any) -> Any:
        return np.asarray(values, dtype=float).reshape(posterior.chains, -1, *np.shape(values)[1:])

    variables: dict[str, Any] = {name: (("chain", "draw"), by_chain(getattr(posterior.rates, name))) for name in UNITS}
    variables["sigma"] = (("chain", "draw", "kind"), by_chain(posterior.sigma))
    gpu, engines = grids[0].gpu.name, tuple(sorted({g.engine for g in grids}))
    models = tuple(sorted({g.model.name for g in grids}))
    cells, tps = sum(len(g.cells) for g in grids), tuple(sorted({g.tp for g in grids}))
    stack = STACKS.get(engines[0])
    origin = Origin.IN_PROCESS if stack is None else Origin.KERNELS
    learnt = Provenance(origin, f"learnt from {cells} measured cells", gpu, (weight_dtype,), tps, engines, models)
    sources = {name: learnt if name in posterior.learnt else result.fit.priors[name].provenance for name in UNITS}
    parts = [g.cells for g in grids]
    for each in result.microbenchmarks:
        sources |= {name: Provenance(Origin.KERNELS, each.basis, gpu) for name in each.rates if name not in result.fit.model.free}
        parts.append(each.cells)
    statistics = {"sample_stats": xr.Dataset({"diverging": (("chain", "draw"), posterior.diverging.astype(np.int8))})}
    return write_posterior(
        path,
        xr.Dataset(variables, coords={"kind": list(KINDS)}),
        family=STEP_TIME,
        gpu=gpu,
        source=replace(learnt, evidence=describe(grids)),
        sources=sources,
        data_fingerprint=concatenate(parts).fingerprint(),
        diagnostics=result.diagnostics,
        settings=result.fit.settings,
        thin_to=thin_to,
        groups=statistics,
        engine=", ".join(engines),
        weight_dtype=weight_dtype,
        host_sd=result.fit.other_host_sd,
        learnt_from=json.dumps([g.cells.mark() for g in grids]),
        held_out=json.dumps([asdict(h) for h in result.held_out]),
        **({} if stack is None else {"stack": stack.name, "stack_terms": stack.terms()}),
    )
