"""Write posteriors as InferenceData netCDF, thinned, marked and whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.sampling import Diagnostics, Settings
from sim.cost.provenance import Provenance
from sim.errors import SimctlError
from sim.files import replacing
from sim.netcdf import netcdf_content
from sim.rates.draws_file import write_draws
from sim.rates.fingerprint import formula_fingerprint
from sim.rates.posterior import SCHEMA, digest


def write_posterior(
    path: str | Path,
    posterior: Any,
    *,
    family: str,
    gpu: str,
    source: Provenance,
    sources: Mapping[str, Provenance],
    data_fingerprint: str,
    diagnostics: Diagnostics,
    settings: Settings,
    thin_to: int | None = None,
    groups: Mapping[str, Any] | None = None,
    **more: str | int | float,
) -> Path:
    """Write the posterior group (xarray, dims chain and draw first), further InferenceData groups, and what vouches for them.

    `thin_to` keeps about that many draws in all, as float32, and writes them beside the file, too, as .npy that loads fast. Raises OSError;
    a failed write leaves what was there.
    """
    import xarray as xr

    if thin_to is not None:
        step = max(1, posterior.sizes["draw"] * posterior.sizes["chain"] // thin_to)
        posterior = posterior.isel(draw=slice(None, None, step)).astype(np.float32)
    posterior = posterior[names := sorted(posterior.data_vars)].transpose("chain", "draw", ...)
    attrs: dict[str, Any] = {
        "schema": SCHEMA,
        "family": family,
        "gpu": gpu,
        "summary": source.text(),
        "source": json.dumps(source.to_json(), sort_keys=True),
        "basis": json.dumps({name: each.to_json() for name, each in sources.items()}, sort_keys=True),
        "data": data_fingerprint,
        "formula": formula_fingerprint(),
        **_sampled(diagnostics, settings),
        **more,
    }
    variables = {name: posterior[name].values for name in names}
    attrs["digest"] = digest(attrs, variables)
    path = Path(path)
    if not path.parent.is_dir():
        raise SimctlError(f"{path.parent}: no such folder")
    found = {"posterior": posterior, **(groups or {})}
    content = netcdf_content({"/": xr.Dataset(attrs=attrs)} | {name: group.drop_attrs() for name, group in found.items()})
    with replacing(path) as temporary:
        temporary.write_bytes(content)
    if thin_to is not None:
        write_draws(path, attrs, variables)
    return path


def _sampled(diagnostics: Diagnostics, settings: Settings) -> dict[str, Any]:
    """Attributes that say how it was sampled, and how well."""
    return {
        "converged": int(not diagnostics.failures()),
        "rhat_max": float(diagnostics.rhat_max),
        "ess_min": float(diagnostics.ess_min),
        "divergences": int(diagnostics.divergences),
        "sampler": "nutpie",
        "seed": settings.seed,
        "chains": settings.chains,
        "tune": settings.tune,
        "draws_sampled": settings.draws * settings.chains,
    }
