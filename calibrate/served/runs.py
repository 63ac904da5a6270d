"""Measured served runs as experiments: who sent what when, and when the tokens came back.

Two sources: a `served` measurement file (netCDF, one run of several experiments) and a per-request log of any engine (CSV).
"""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.measurement import model_of, open_measurement
from sim.deployment import Limits
from sim.errors import UsageError
from sim.precision import Precision
from sim.specs.gpu import GpuSpec
from sim.specs.gpus import get_gpu
from sim.specs.model import ModelSpec
from sim.workload.content import Grown
from sim.workload.trace import Trace, TraceBuilder

SCHEMA, SUITE = "simctl-measurement/1", "served"
DTYPE = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32"}
LOG_COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens", "first_token_s", "finish_s")
MAX_LINE = 1 << 16

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Experiment:
    """Requests in order of sending; every array has shape [request], seconds and tokens. `ttft_s` and `e2el_s` count from sending."""

    name: str
    kind: str  # "ladder", "open", "closed", "sessions", "burst"
    arrival_s: Array
    prompt_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    ttft_s: Array
    e2el_s: Array
    cached_tokens: Array | None = None  # what the engine said it reused, NaN where it did not say
    # client of each request, -1 for none: its next is sent when its last came back; in "sessions" it repeats all that was said before
    session: NDArray[np.int64] | None = None
    clients: int = 0  # of a ladder or closed loop
    window_step_s: float = math.nan  # true-decode window of a ladder rung: seconds per step
    token_s: tuple[Array, ...] | None = (
        None  # when each token of each request came, from the first sending; None where nobody wrote it down
    )
    limits: Limits | None = None  # of the server it ran on, where that is not the run's

    @property
    def tpot_s(self) -> Array:
        """Time per output token after the first; NaN for a request of one token."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(np.where(self.output_tokens > 1, (self.e2el_s - self.ttft_s) / (self.output_tokens - 1), np.nan))

    def trace(self) -> Trace:
        """The same requests as a workload, at the times they were really sent.

        A later request of a client follows its previous one after the pause the client really made, so that a closed loop stays closed.
        In sessions its prompt begins with all that was said before.
        """
        builder = TraceBuilder(self.name)
        start = float(self.arrival_s[0])
        said: dict[int, int] = {}  # session -> tokens said so far
        back: dict[int, float] = {}  # session -> when its last answer came back
        for i in range(len(self.arrival_s)):
            session = -1 if self.session is None else int(self.session[i])
            sent, prompt, output = float(self.arrival_s[i]), int(self.prompt_tokens[i]), int(self.output_tokens[i])
            later = session in back
            builder.add(
                f"request {i}",
                arrival_s=None if later else sent - start,
                think_s=max(0.0, sent - back[session]) if later else 0.0,
                prompt_tokens=prompt,
                output_tokens=output,
                request_id=str(i),
                session_id=None if session < 0 else str(session),
                content=Grown(min(said[session], prompt)) if later and self.kind == "sessions" else None,
            )
            if session >= 0:
                said[session], back[session] = prompt + output, sent + float(self.e2el_s[i])
        return builder.build()


@dataclass(frozen=True)
class ServedRun:
    """One served run: where it ran, under which limits, and its experiments."""

    name: str
    gpu: GpuSpec
    model: ModelSpec
    precision: Precision
    limits: Limits
    tp: int
    engine: str
    experiments: tuple[Experiment, ...]
    notes: tuple[str, ...] = field(default=())


def read_served(path: Path) -> ServedRun:
    """Read a `served` measurement. Raises UsageError naming the file and what is wrong with it; OSError when it cannot be read."""
    data = open_measurement(path)
    attrs = data.attrs
    if attrs.get("schema") != SCHEMA or attrs.get("suite") != SUITE:
        raise UsageError(f"{path.name}: not a served measurement (schema {attrs.get('schema')!r}, suite {attrs.get('suite')!r})")
    needed = ("experiment_index", *LOG_COLUMNS, "name", "kind", "n")
    missing = [n for n in needed if n not in data] + [n for n in ("gpu_name", "model", "weight_dtype") if n not in attrs]
    if missing:
        raise UsageError(f"{path.name}: lacks {', '.join(missing)}")
    flags = str(attrs.get("plan_server_flags", "")) or re.sub(r"--num-gpu-blocks-override[ =]\d+", "", _starved_flags(data))
    return ServedRun(
        name=path.stem,
        gpu=get_gpu(str(attrs["gpu_name"])),
        model=model_of(attrs, path),
        precision=Precision(_dtype(attrs["weight_dtype"]), _dtype(attrs.get("kv_dtype", "bfloat16"))),
        limits=limits_of_flags(flags),
        tp=int(_flag(flags, "tensor-parallel-size") or 1),
        engine=f"{attrs.get('plan_engine', 'vllm')} {attrs.get('vllm_version', '')}".strip(),
        experiments=tuple(_experiment(data, i) for i in range(data.sizes["experiment"]) if _complete(data, i)),
        notes=(str(attrs["note"]),) if attrs.get("note") else (),
    )


def read_log(path: Path, gpu: GpuSpec, model: ModelSpec, precision: Precision, limits: Limits, tp: int = 1) -> ServedRun:
    """Read a per-request log, CSV with the columns arrival_s, prompt_tokens, output_tokens, first_token_s, finish_s (all absolute seconds
    on one clock) and optionally cached_tokens. Raises UsageError naming the line.
    """
    rows: list[dict[str, float]] = []
    with path.open(encoding="utf-8", newline="") as handle:
        reader = csv.DictReader(handle)
        missing = [c for c in LOG_COLUMNS if c not in (reader.fieldnames or ())]
        if missing:
            raise UsageError(f"{path.name}: line 1: lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}")
        for number, row in enumerate(reader, start=2):
            rows.append(_log_row(path.name, number, row))
    if not rows:
        raise UsageError(f"{path.name}: no requests")
    rows.sort(key=lambda r: r["arrival_s"])
    column = {name: np.array([r[name] for r in rows]) for name in LOG_COLUMNS}
    cached = np.array([r["cached_tokens"] for r in rows]) if all("cached_tokens" in r for r in rows) else None
    experiment = Experiment(
        name=path.stem,
        kind="open",
        arrival_s=column["arrival_s"],
        prompt_tokens=column["prompt_tokens"].astype(np.int64),
        output_tokens=column["output_tokens"].astype(np.int64),
        ttft_s=column["first_token_s"] - column["arrival_s"],
        e2el_s=column["finish_s"] - column["arrival_s"],
        cached_tokens=cached,
    )
    return ServedRun(path.stem, gpu, model, precision, limits, tp, "per-request log", (experiment,))


def limits_of_flags(flags: str) -> Limits:
    """The engine limits among a server's command-line flags; vLLM's defaults for the rest."""
    whole = {
        name: _flag(flags, name.replace("_", "-")) for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size")
    }
    chosen: dict[str, Any] = {name: int(value) for name, value in whole.items() if value is not None}
    share, blocks = _flag(flags, "gpu-memory-utilization"), _flag(flags, "num-gpu-blocks-override")
    if share is not None:
        chosen["gpu_memory_utilization"] = float(share)
    if blocks is not None:
        chosen["num_gpu_blocks"] = int(blocks)
    options = {"async_scheduling": False} if "--no-async-scheduling" in flags else {}
    return Limits(**chosen, enable_prefix_caching="--no-enable-prefix-caching" not in flags, options=options)


def _flag(flags: str, name: str) -> str | None:
    found = re.search(rf"--{name}[ =](\S+)", flags)
    return found[1] if found else None


def _dtype(name: str) -> str:
    return DTYPE.get(str(name), str(name))


def _complete(data: Any, index: int) -> bool:
    """Whether the experiment was not voided: every stream of a batch must have succeeded."""
    return not str(data["void"].values[index]) if "void" in data else True


def _experiment(data: Any, index: int) -> Experiment:
    where = np.flatnonzero(data["experiment_index"].values == index)
    where = where[np.argsort(data["arrival_s"].values[where], kind="stable")]
    column = {name: data[name].values[where].astype(float) for name in LOG_COLUMNS}
    clients = float(data["n"].values[index])
    cached = data["cached_tokens"].values[where].astype(float) if "cached_tokens" in data else np.full(len(where), np.nan)
    return Experiment(
        name=str(data["name"].values[index]),
        kind=(kind := str(data["kind"].values[index])),
        arrival_s=column["arrival_s"],
        prompt_tokens=column["prompt_tokens"].astype(np.int64),
        output_tokens=column["output_tokens"].astype(np.int64),
        ttft_s=column["first_token_s"],
        e2el_s=column["finish_s"],
        cached_tokens=None if np.isnan(cached).all() else cached,
        session=_sessions(data, where),
        clients=0 if math.isnan(clients) else int(clients),
        window_step_s=float(data["window_step_s"].values[index]) if "window_step_s" in data else math.nan,
        token_s=_token_times(data, where),
        limits=limits_of_flags(starved) if kind == "burst" and (starved := _starved_flags(data)) else None,
    )


def _starved_flags(data: Any) -> str:
    """Flags of the second server, with little KV, on which a burst ran."""
    return str(data.attrs.get("starved_server_flags", ""))


def _token_times(data: Any, where: NDArray[np.int64]) -> tuple[Array, ...] | None:
    """Arrival of every token of these requests, from the first one sent; None in files without."""
    if "token_time_s" not in data:
        return None
    every, ends = data["token_time_s"].values.astype(float), np.cumsum(data["output_tokens"].values.astype(np.int64))
    return (
        None
        if not ends.size or ends[-1] != every.size
        else tuple(every[ends[i] - int(data["output_tokens"].values[i]) : ends[i]] for i in where)
    )


def _sessions(data: Any, where: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Session of each request; None when the experiment has none, or none of more than one turn."""
    if "session" not in data:
        return None
    sessions = data["session"].values[where].astype(np.int64)
    kept = sessions[sessions >= 0]
    return sessions if len(kept) > len(np.unique(kept)) else None


def _log_row(name: str, number: int, row: dict[str, str | None]) -> dict[str, float]:
    values: dict[str, float] = {}
    for column in (*LOG_COLUMNS, "cached_tokens"):
        text = row.get(column)
        if text is None or text == "":
            if column == "cached_tokens":
                continue
            raise UsageError(f"{name}: line {number}: {column} is missing")
        try:
            values[column] = float(text)
        except ValueError:
            raise UsageError(f"{name}: line {number}: {column} must be a number, got {text[:40]!r}") from None
        if not math.isfinite(values[column]):
            raise UsageError(f"{name}: line {number}: {column} must be finite, got {text!r}")
    for column in ("prompt_tokens", "output_tokens"):
        if values[column] < 1 or values[column] != int(values[column]):
            raise UsageError(f"{name}: line {number}: {column} must be a whole number from 1 up")
    if not values["arrival_s"] <= values["first_token_s"] <= values["finish_s"]:
        raise UsageError(f"{name}: line {number}: needs arrival_s <= first_token_s <= finish_s")
    return values


def first_part(experiment: Experiment, share: float) -> tuple[Experiment, Experiment]:
    """The first `share` of an experiment's requests (five at least), and the rest. Raises UsageError when nothing would be left."""
    count = max(5, int(len(experiment.arrival_s) * share))
    if count >= len(experiment.arrival_s):
        raise UsageError(f"{experiment.name}: {len(experiment.arrival_s)} requests are too few to learn from some and check the rest")
    return _take(experiment, slice(0, count), "first"), _take(experiment, slice(count, None), "rest")


def _take(experiment: Experiment, part: slice, suffix: str) -> Experiment:
    columns = {
        name: getattr(experiment, name)[part]
        for name in ("arrival_s", "prompt_tokens", "output_tokens", "ttft_s", "e2el_s", "cached_tokens", "session")
        if getattr(experiment, name) is not None
    }
    return replace(experiment, name=f"{experiment.name} ({suffix})", **columns)
