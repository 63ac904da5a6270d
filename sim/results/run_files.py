"""Runs as files: `run.nc` (every request, every iteration) and `summary.json` (the figures, all derived from run.nc), written and read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.errors import UsageError
from sim.files import plain
from sim.netcdf import DamagedFileError, netcdf_content, whole
from sim.results.metrics import LEVELS, PER_REQUEST
from sim.results.record import RunRecord

RUN_FILE, SUMMARY_FILE = "run.nc", "summary.json"
FAMILY = "simctl run "
FORMAT = f"{FAMILY}1"

# name -> (units, what it is); units as netCDF users read them, "1" for counts
REQUEST_VARIABLES: dict[str, tuple[str, str]] = {
    "arrival_s": ("s", "when the client sent it"),
    "reached_s": ("s", "when it reached the API server of its replica"),
    "submitted_s": ("s", "when the engine of its replica got it, the first of them where one failed"),
    "scheduled_s": ("s", "when the first iteration that computed for it was decided"),
    "first_sampled_s": ("s", "end of the iteration that sampled its first token"),
    "first_token_s": ("s", "when its client had the first token"),
    "last_sampled_s": ("s", "end of the iteration that sampled its last token; NaN when still resident"),
    "finish_s": ("s", "when its client had the last token; NaN when still resident"),
    "cancelled_s": ("s", "when its client gave up; NaN where it did not"),
    "prompt_tokens": ("tokens", "prompt length"),
    "output_tokens": ("tokens", "tokens asked for"),
    "generated_tokens": ("tokens", "tokens generated"),
    "cached_tokens": ("tokens", "prompt tokens found in the prefix cache when first scheduled"),
    "host_cached_tokens": ("tokens", "of these, those found in host RAM"),
    "preemptions": ("1", "times it lost its KV blocks and recomputed"),
    "replica": ("1", "replica that served it"),
    "turn": ("1", "turn within its session"),
    "rejected": (
        "1",
        "0, or why it has no answer: 1 full queue, 2 TTFT goal, 3 token bucket, 4 too long (its replica is then -1), 5 its replica failed",
    ),
    "repeated_tokens": ("tokens", "first prompt tokens that its session's turn before had, too; -1 not known"),
    "decision": ("1", "how the router chose its replica, a place in decision_name; -1 where it did not"),
}
ITERATION_VARIABLES: dict[str, tuple[str, str]] = {
    "decided_s": ("s", "when the iteration was decided"),
    "start_s": ("s", "when it began: at once, or when the tokens of the one before it were sent"),
    "duration_s": ("s", "from then until its own tokens were sent"),
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
    "short_of": (
        "1",
        "what the first waiting request lacked: 1 token budget, 2 a sequence slot, 3 KV blocks; 0 nothing, or not said",
    ),
    "decode_kv_s": ("s", "of the term kv, what decodes took"),
}
CHUNK_VARIABLES: dict[str, tuple[str, str]] = {
    "chunk_iteration": ("1", "place of the iteration in which a request computed a chunk of prefill"),
    "chunk_request": ("1", "place of that request"),
    "chunk_tokens": ("tokens", "tokens computed, of the prompt or again after a preemption"),
    "chunk_end": ("tokens", "its tokens with KV after the chunk"),
}
EVENT_VARIABLES: dict[str, tuple[str, str]] = {
    "event_s": ("s", "when something happened to a request inside an engine"),
    "event_request": ("1", "place of that request"),
    "event_kind": (
        "1",
        "1 paused after this token, 2 sampled again, 3 preempted, 4 replica failed, 5 handed over, 6 waits for KV, 7 another engine got it",
    ),
    "event_replica": ("1", "the replica"),
}
TEXTS = {
    "request_id": ("request",), "session_id": ("request",), "tenant": ("request",), "term": ("term",), "decision_name": ("decision_name",),
    "stall_s": ("stall",), "paid_s": ("replica_index",), "term_s": ("iteration", "term"),
}  # fmt: skip
TABLES = (
    (REQUEST_VARIABLES, "request"), (ITERATION_VARIABLES, "iteration"), (CHUNK_VARIABLES, "chunk"), (EVENT_VARIABLES, "event"),
)  # fmt: skip
LATEST_S = 1e15  # arrivals end at 1e10; think times come on top
MOST_BYTES = 8 << 30  # of a run's columns in memory
SINGLE = ("decode_kv_s",)  # in single precision, as terms are: shares, no times


def to_dataset(
    record: RunRecord,
    attrs: Mapping[str, Any],
    draws: Mapping[str, Sequence[float]] | None = None,
    repeats: Mapping[str, Sequence[float]] | None = None,
    quantiles: Sequence[NDArray[np.float64]] = (),
) -> Any:
    """The run as an xarray.Dataset with dims request, iteration, term, stall, chunk and event; `attrs` are its provenance.

    `draws` maps figures to their values at each draw of the rates, `repeats` to those of repeats with other seeds: dims draw or repeat,
    and figure. `quantiles` are those of the latencies at each draw (metrics.latency_quantiles): dims draw, latency and level.
    """
    import xarray as xr

    variables: dict[str, Any] = {}
    for dim, described, columns in _tables(record):
        for name, (units, text) in described.items():
            variables[name] = (dim, _typed(name, columns[name]), {"units": units, "long_name": text})
    meaning = {"units": "s", "long_name": "step time of the iteration by term"}
    variables["term_s"] = (("iteration", "term"), record.terms.astype(np.float32), meaning)
    meaning = {"units": "s", "long_name": "inter-token gaps over iterations in which the request did not sample"}
    variables["stall_s"] = ("stall", record.stall_s, meaning)
    if record.paid_s:
        meaning = {"units": "s", "long_name": "how long a replica was up, or on its way up"}
        variables["paid_s"] = ("replica_index", np.array(record.paid_s), meaning)
    if any(session is not None for session in record.session_ids):
        names = np.array(["" if session is None else session for session in record.session_ids], dtype=object)
        variables["session_id"] = ("request", names)
    if record.tenants:
        variables["tenant"] = ("request", np.array(record.tenants, dtype=object))
    coordinates: dict[str, Any] = {
        "request_id": ("request", np.array(record.request_ids, dtype=object)),
        "term": ("term", np.array(record.term_names, dtype=object)),
        "decision_name": ("decision_name", np.array(record.decision_names, dtype=object)),
    }
    for dim, text, figures in (
        ("draw", "the same workload at each draw of the rates", draws),
        ("repeat", "other draws of the workload at the median rates", repeats),
    ):
        if figures:
            table = np.array(list(figures.values()), dtype=np.float64).T
            variables[f"{dim}_value"] = ((dim, f"{dim}_figure"), table, {"units": "1", "long_name": f"{text}; each figure in its own unit"})
            coordinates[f"{dim}_figure"] = (f"{dim}_figure", np.array(list(figures), dtype=object))
    if quantiles:
        attrs_of = {"units": "ms", "long_name": "quantile of the latency over requests, at each draw of the rates"}
        variables["draw_quantile_ms"] = (("draw", "latency", "level"), np.stack(quantiles), attrs_of)
        coordinates |= {"latency": ("latency", np.array(PER_REQUEST, dtype=object)), "level": ("level", np.array(LEVELS))}
    return xr.Dataset(variables, coords=coordinates, attrs={"format": FORMAT, **attrs})


def from_dataset(dataset: Any) -> RunRecord:
    """The record of a run's dataset, as `to_dataset` makes it. Raises UsageError when it is of another version's run, or of none."""
    if (found := str(dataset.attrs.get("format"))) != FORMAT:
        if found.startswith(FAMILY):
            raise UsageError(f"a run of another version of simctl ({found[:40]!r}, here {FORMAT!r}): simulate it again")
        raise UsageError("not a run of `simctl simulate --out`")
    required = [*REQUEST_VARIABLES, *ITERATION_VARIABLES, *CHUNK_VARIABLES, *EVENT_VARIABLES, "request_id", "term", "term_s", "stall_s"]
    if missing := [name for name in required if name not in dataset.variables]:
        raise UsageError(f"a run of an older version of simctl (no {missing[0]}): simulate it again")

    for names, dim in TABLES:
        for name in names:
            if dataset[name].dims != (dim,) or dataset[name].dtype.kind not in "iuf":
                raise UsageError(f"a damaged run: {name} is no column of numbers by {dim}")
    for name, dims in TEXTS.items():
        if name in dataset and dataset[name].dims != dims:
            raise UsageError(f"a damaged run: {name} is not by {dims[0]}")

    def columns(names: Mapping[str, Any]) -> dict[str, Any]:
        return {name: np.asarray(dataset[name].values, dtype=np.float64) for name in names}

    sessions = dataset["session_id"].values.astype(str).tolist() if "session_id" in dataset else [""] * dataset.sizes["request"]
    return RunRecord(
        dataset["request_id"].values.astype(str).tolist(),
        [session or None for session in sessions],
        {name: dataset[name].values for name in REQUEST_VARIABLES},
        columns(ITERATION_VARIABLES),
        tuple(dataset["term"].values.astype(str).tolist()),
        dataset["term_s"].values.astype(np.float64),
        dataset["stall_s"].values,
        dataset["paid_s"].values.tolist() if "paid_s" in dataset else (),
        columns(CHUNK_VARIABLES),
        columns(EVENT_VARIABLES),
        tuple(dataset["decision_name"].values.astype(str).tolist()) if "decision_name" in dataset else (),
        dataset["tenant"].values.astype(str).tolist() if "tenant" in dataset else (),
    )


def read_run(path: Path) -> tuple[RunRecord, dict[str, Any]]:
    """(record, provenance) of a run.nc, or of the directory that has it. Raises UsageError naming the file, or OSError."""
    record, dataset = read_run_dataset(path)
    return record, dict(dataset.attrs)


def read_run_dataset(path: Path) -> tuple[RunRecord, Any]:
    """As `read_run`, with the whole dataset in place of its attributes: it has the draws and the repeats, too."""
    import xarray as xr

    file = path / RUN_FILE if path.is_dir() else path
    with file.open("rb") as handle:  # a missing file is an OSError with its name
        if handle.read(8) != b"\x89HDF\r\n\x1a\n":
            raise UsageError(f"{file}: not a run.nc of `simctl simulate --out`")

    def read() -> Any:
        with xr.open_dataset(file, engine="h5netcdf", phony_dims="access") as opened:
            if opened.nbytes > MOST_BYTES:
                raise ValueError(f"stands for {opened.nbytes:,} bytes, more than any run")
            return opened.load()

    try:
        dataset = whole(read)
        return whole(lambda: _checked(from_dataset(dataset))), dataset
    except DamagedFileError as damage:
        raise UsageError(f"{file}: {damage}") from None


def _checked(record: RunRecord) -> RunRecord:
    """The record, if its numbers are finite and its sparse tables name requests and iterations that there are. ValueError."""
    for dim, described, columns in _tables(record):
        for name in described:
            if (dim != "request" or not name.endswith("_s") or name == "arrival_s") and not np.isfinite(columns[name]).all():
                raise ValueError(f"damaged: {name} has what is no number")
            if name.endswith("_s") and (np.abs(columns[name]) > LATEST_S).any():
                raise ValueError(f"damaged: {name} is beyond {LATEST_S:g} s")
    requests, iterations = len(record.request_ids), len(record.iterations["start_s"])
    for names, most in (("chunk_iteration", iterations), ("chunk_request", requests), ("event_request", requests)):
        places = (record.chunks | record.events)[names]
        if not ((places >= 0) & (places < most)).all():
            raise ValueError(f"damaged: {names} names what is not there")
    if not np.isfinite(record.terms).all() or (record.terms < 0).any():
        raise ValueError("damaged: term_s has what is no time")
    if (record.iterations["tokens"] <= 0).any():
        raise ValueError("damaged: an iteration without tokens")
    return record


def write_run(directory: Path, dataset: Any, summary: Mapping[str, Any]) -> None:
    """Write run.nc (`to_dataset`) and summary.json into `directory`. No wall-clock time goes in: equal runs are equal bytes."""
    (directory / RUN_FILE).write_bytes(netcdf_content({"/": dataset}, level=1))
    (directory / SUMMARY_FILE).write_text(summary_json(summary) + "\n", encoding="utf-8")


def summary_json(summary: Mapping[str, Any]) -> str:
    """JSON with NaN as null, so that every reader takes it."""
    return json.dumps(plain(summary), indent=2, allow_nan=False)


def _tables(record: RunRecord) -> Iterator[tuple[str, Mapping[str, tuple[str, str]], Mapping[str, Any]]]:
    """(dimension, what its variables are, their columns)."""
    yield "request", REQUEST_VARIABLES, record.requests
    yield "iteration", ITERATION_VARIABLES, record.iterations
    if record.chunks:
        yield "chunk", CHUNK_VARIABLES, record.chunks
        yield "event", EVENT_VARIABLES, record.events


def _typed(name: str, values: Any) -> Any:
    if not name.endswith("_s"):
        return np.asarray(values).astype(np.int32)
    return np.asarray(values).astype(np.float32 if name in SINGLE else np.float64)
