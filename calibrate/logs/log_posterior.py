"""Posterior file of rates learnt from a served log."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from calibrate.artifacts import write_posterior
from calibrate.logs.learn import Learnt
from calibrate.logs.requests import ServedLog
from calibrate.sampling import Settings
from calibrate.served.runs import ServedRun
from calibrate.steps.iterations import KINDS
from sim.cost.provenance import Origin, Provenance
from sim.cost.rates import UNITS
from sim.rates.kinds import kinds_of
from sim.rates.load import load_rates
from sim.rates.posterior import STEP_TIME
from sim.rates.priors import Prior
from sim.rates.serving import HostRates

T5_SD = (5 / 3) ** 0.5  # of Student's t of five degrees of freedom, as which a model error is drawn


def save(out: Path, run: ServedRun, log: ServedLog, learnt: Learnt, priors: Mapping[str, Prior], settings: Settings) -> Path:
    """Write it. The log shows no kinds of iterations: the misfit of its decode times stands for all, and what the formula is known to miss
    of this GPU's iterations and of what of the deployment was not measured there: one load does not show how that differs between loads.
    """
    shape, e, mark = (learnt.idata.posterior.sizes["chain"], learnt.idata.posterior.sizes["draw"]), log.experiment, hashlib.sha256()
    for column in (e.arrival_s, e.prompt_tokens, e.output_tokens, e.ttft_s, e.e2el_s, log.waited_s):
        mark.update(np.ascontiguousarray(column).tobytes())
    count, gpu, dtype = int(log.answered.sum()), run.gpu.name, run.precision.weights
    engine = run.engine if run.engine.startswith(run.limits.engine) else run.limits.engine
    own = Provenance(Origin.SERVED, f"learnt from {count} requests of a served log", gpu, (dtype,), (run.tp,), (engine,), (run.model.name,))
    own = replace(own, kinds=tuple(kinds_of(run.deployment)))
    variables: dict[str, Any] = {n: (("chain", "draw"), np.asarray(getattr(learnt.rates, n), dtype=float).reshape(shape)) for n in UNITS}
    known = load_rates(run.deployment).error
    missed = np.hypot(learnt.misfit[:, 1:], 0.0 if known is None else np.std(np.log(known))) / T5_SD
    variables["sigma"] = (("chain", "draw", "kind"), np.repeat(missed, len(KINDS), axis=1).reshape(*shape, len(KINDS)))
    variables["request_s"] = (("chain", "draw"), learnt.request_s.reshape(shape))
    return write_posterior(
        out,
        xr.Dataset(variables, coords={"kind": list(KINDS)}),
        family=STEP_TIME,
        gpu=gpu,
        source=replace(own, evidence=f"rates of {gpu} as served, from {count} requests ({log.source})"),
        sources={name: own if name in learnt.free else priors[name].provenance for name in UNITS},
        data_fingerprint=mark.hexdigest(),
        diagnostics=learnt.diagnostics,
        settings=settings,
        groups={"sample_stats": learnt.idata.sample_stats[["diverging"]].astype(np.int8)},
        engine=log.source,
        weight_dtype=dtype,
        host_request_s=HostRates(float(np.median(learnt.request_s)), text=e.text).sent(text=True).request_s,
    )
