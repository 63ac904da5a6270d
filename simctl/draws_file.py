"""Answers with every draw behind them, as netCDF: dims draw and option, or draw, context and batch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from sim.rates import RateDraws
    from sim.regime import RegimeMap
    from sim.whatif import Answer

FORMAT = "simctl draws 1"


def write_what_if(path: Path, answer: Answer, rates: RateDraws, asked: Mapping[str, Any]) -> None:
    """Decode step time of every option at every draw: draw i of all options has the same rates, so ratios of a draw are meaningful.

    `miss_factor` [draw] is what the formula misses of one run, already in `step_s`; over it, `step_s` is of the rates alone.
    """
    from sim.whatif import step_seconds

    q, options = answer.question, answer.options
    times = np.array([np.asarray(step_seconds(q, o.policy, float(o.batch), float(q.context), rates.draws, np)) for o in options])
    import xarray as xr

    words = {"policy": [o.policy.kind for o in options], "kv_in": [o.policy.placement for o in options]}
    variables: dict[str, Any] = {
        "step_s": (("option", "draw"), times, {"units": "s", "long_name": "one decode step"}),
        "feasible": ("option", np.array([o.feasible for o in options], dtype=np.int8), {"units": "1", "long_name": "1: it fits"}),
    }
    if rates.error is not None:
        meaning = {"units": "1", "long_name": "what the formula misses of one run, in step_s"}
        variables["miss_factor"] = ("draw", np.asarray(rates.error), meaning)
    coordinates: dict[str, Any] = {name: ("option", np.array(values, dtype=object)) for name, values in words.items()}
    coordinates["k"] = ("option", np.array([o.policy.k for o in options]))
    coordinates["batch"] = ("option", np.array([o.batch for o in options]))
    _write(path, xr.Dataset(variables, coordinates, _attributes(asked, rates.summary)))


def write_regime(path: Path, result: RegimeMap, asked: Mapping[str, Any], summary: str) -> None:
    """Speed-up of sparse over dense decode at every draw, context and batch."""
    import xarray as xr

    meaning = {"units": "1", "long_name": "dense step time over sparse step time at the same rates"}
    variables = {"speedup": (("context_tokens", "batch", "draw"), result.draws, meaning)}
    coordinates = {"context_tokens": result.contexts, "batch": result.batches}
    _write(path, xr.Dataset(variables, coordinates, _attributes(asked, summary)))


def _attributes(asked: Mapping[str, Any], summary: str) -> dict[str, Any]:
    plain = {name: "" if v is None else v if isinstance(v, int | float | str) else str(v) for name, v in asked.items()}
    return {"format": FORMAT, "rates_basis": summary, **{name: int(v) if isinstance(v, bool) else v for name, v in plain.items()}}


def _write(path: Path, dataset: Any) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        dataset.to_netcdf(temporary, engine="h5netcdf")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
