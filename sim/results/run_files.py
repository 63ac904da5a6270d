"""Runs as files: `run.nc` (every request, every iteration) and `summary.json` (the figures, all derived from run.nc)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sim.files import plain
from sim.results.record import RunRecord

RUN_FILE, SUMMARY_FILE = "run.nc", "summary.json"
FORMAT = "simctl run 1"

# name -> (units, what it is); units as netCDF users read them, "1" for counts
REQUEST_VARIABLES: dict[str, tuple[str, str]] = {
    "arrival_s": ("s", "when the client sent it"),
    "scheduled_s": ("s", "start of the first iteration that computed for it"),
    "first_token_s": ("s", "end of the iteration that sampled its first token"),
    "finish_s": ("s", "end of the iteration that sampled its last token; NaN when still resident"),
    "cancelled_s": ("s", "when its client gave up; NaN where it did not"),
    "prompt_tokens": ("tokens", "prompt length"),
    "output_tokens": ("tokens", "tokens asked for"),
    "generated_tokens": ("tokens", "tokens generated"),
    "cached_tokens": ("tokens", "prompt tokens found in the prefix cache when first scheduled"),
    "preemptions": ("1", "times it lost its KV blocks and recomputed"),
    "replica": ("1", "replica that served it"),
    "turn": ("1", "turn within its session"),
    "rejected": (
        "1",
        "0, or why it has no answer: 1 full queue, 2 TTFT goal, 3 token bucket, 4 too long (its replica is then -1), 5 its replica failed",
    ),
}
ITERATION_VARIABLES: dict[str, tuple[str, str]] = {
    "start_s": ("s", "when the iteration was decided"),
    "duration_s": ("s", "its step time"),
    "iteration_replica": ("1", "replica that ran it"),
    "scheduled": ("1", "requests that computed tokens"),
    "running": ("1", "requests holding KV blocks"),
    "waiting": ("1", "requests queued"),
    "tokens": ("tokens", "tokens computed"),
    "prefill_tokens": ("tokens", "of these, tokens of prefill chunks"),
    "kv_blocks_used": ("1", "KV blocks held by running requests"),
    "admitted": ("1", "requests started or resumed"),
    "preempted": ("1", "requests preempted"),
    "sampled": ("1", "tokens sampled"),
    "itl_gaps": ("1", "inter-token gaps equal to the time since the end of the replica's previous iteration"),
}
_FLOATS = ("arrival_s", "scheduled_s", "first_token_s", "finish_s", "cancelled_s", "start_s", "duration_s")


def to_dataset(
    record: RunRecord,
    attrs: Mapping[str, Any],
    draws: Mapping[str, Sequence[float]] | None = None,
    repeats: Mapping[str, Sequence[float]] | None = None,
) -> Any:
    """The run as an xarray.Dataset with dims request, iteration, term and stall; `attrs` are its provenance.

    `draws` maps figures to their values at each draw of the rates, `repeats` to those of repeats with other seeds: dims draw or repeat,
    and figure.
    """
    import xarray as xr

    variables: dict[str, Any] = {}
    for name, (units, text) in REQUEST_VARIABLES.items():
        variables[name] = ("request", _typed(name, record.requests[name]), {"units": units, "long_name": text})
    for name, (units, text) in ITERATION_VARIABLES.items():
        variables[name] = ("iteration", _typed(name, record.iterations[name]), {"units": units, "long_name": text})
    meaning = {"units": "s", "long_name": "step time of the iteration by term"}
    variables["term_s"] = (("iteration", "term"), record.terms.astype(np.float32), meaning)
    variables["stall_s"] = (
        "stall",
        record.stall_s,
        {"units": "s", "long_name": "inter-token gaps over iterations in which the request did not sample"},
    )
    if any(session is not None for session in record.session_ids):
        names = np.array(["" if session is None else session for session in record.session_ids], dtype=object)
        variables["session_id"] = ("request", names)
    coordinates: dict[str, Any] = {
        "request_id": ("request", np.array(record.request_ids, dtype=object)),
        "term": ("term", np.array(record.term_names, dtype=object)),
    }
    for dim, text, figures in (
        ("draw", "the same workload at each draw of the rates", draws),
        ("repeat", "other draws of the workload at the median rates", repeats),
    ):
        if figures:
            table = np.array(list(figures.values()), dtype=np.float64).T
            variables[f"{dim}_value"] = ((dim, f"{dim}_figure"), table, {"units": "1", "long_name": f"{text}; each figure in its own unit"})
            coordinates[f"{dim}_figure"] = (f"{dim}_figure", np.array(list(figures), dtype=object))
    return xr.Dataset(variables, coords=coordinates, attrs={"format": FORMAT, **attrs})


def write_run(directory: Path, dataset: Any, summary: Mapping[str, Any]) -> None:
    """Write run.nc (`to_dataset`) and summary.json into `directory`. No wall-clock time goes in: equal runs are equal bytes."""
    packed = {"zlib": True, "complevel": 1, "shuffle": True}
    # xarray keeps NaN for missing floats only; text is stored as it is
    encoding = {name: packed for name, v in dataset.variables.items() if v.dtype.kind in "if" and v.size}
    dataset.to_netcdf(directory / RUN_FILE, engine="h5netcdf", encoding=encoding)
    (directory / SUMMARY_FILE).write_text(summary_json(summary) + "\n", encoding="utf-8")


def summary_json(summary: Mapping[str, Any]) -> str:
    """JSON with NaN as null, so that every reader takes it."""
    return json.dumps(plain(summary), indent=2, allow_nan=False)


def _typed(name: str, values: Any) -> Any:
    return np.asarray(values) if name in _FLOATS else np.asarray(values).astype(np.int32)
