"""Turn a step-time calibration into a posterior file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.artifacts import write_posterior
from calibrate.sampling import chosen
from calibrate.steps.cells import KINDS, concatenate
from calibrate.steps.engine_grid import Grid
from calibrate.steps.report import Calibration, describe
from sim.posterior import STEP_TIME
from sim.rates import UNITS


def save(path: Path, result: Calibration, grids: Sequence[Grid], weight_dtype: str, thin_to: int | None = None) -> Path:
    """Write the posterior of `result`: all rates and the model error by kind, with provenance. OSError when it cannot."""
    import xarray as xr

    posterior = result.posterior
    sizes = posterior.idata.posterior.sizes
    shape = (sizes["chain"], sizes["draw"])
    variables: dict[str, Any] = {
        name: (("chain", "draw"), np.asarray(getattr(posterior.rates, name), dtype=float).reshape(shape)) for name in UNITS
    }
    variables["sigma"] = (("chain", "draw", "kind"), posterior.sigma.reshape(*shape, len(KINDS)))
    learnt = f"learnt from {sum(len(g.cells) for g in grids)} measured cells"
    basis = {name: learnt if name in posterior.learnt else result.fit.priors[name].basis for name in UNITS}
    parts = [g.cells for g in grids]
    for alone in result.alone:
        basis |= {name: alone.basis for name in alone.rates if name not in result.fit.free}
        parts.append(alone.cells)
    groups = {"sample_stats": posterior.idata.sample_stats[["diverging"]].astype(np.int8)}
    if thin_to is None:
        groups["log_likelihood"] = posterior.idata.log_likelihood
    return write_posterior(
        path,
        xr.Dataset(variables, coords={"kind": list(KINDS)}),
        family=STEP_TIME,
        gpu=grids[0].gpu.name,
        summary=describe(grids),
        basis=basis,
        data_fingerprint=concatenate(parts).fingerprint(),
        diagnostics=result.diagnostics,
        settings=result.fit.settings,
        sampler=chosen(result.fit.settings.sampler),
        thin_to=thin_to,
        groups=groups,
        engine=", ".join(sorted({g.engine for g in grids})),
        weight_dtype=weight_dtype,
        host_sd=result.fit.other_host_sd,
        learnt_from=json.dumps([g.cells.mark() for g in grids]),
        held_out=json.dumps([asdict(h) for h in result.held_out]),
    )
