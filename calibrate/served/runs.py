"""Measured served runs as experiments: who sent what when, and when the tokens came back.

Two sources: a `served` measurement file (netCDF, one run of several experiments), read here, and a per-request log of any engine
(calibrate.served.request_log).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.measurement import check_attributes, check_columns, model_of, open_measurement
from calibrate.served.flags import limits_of_flags, whole_flag
from sim.deployment import Limits
from sim.errors import UsageError
from sim.precision import Precision
from sim.specs.gpu import GpuSpec
from sim.specs.gpus import get_gpu
from sim.specs.model import ModelSpec
from sim.workload.content import Content, Grown
from sim.workload.trace import Trace, TraceBuilder

SCHEMA, SUITE = "simctl-measurement/1", "served"
DTYPE = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32"}
LOG_COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens", "first_token_s", "finish_s")
OPTIONAL = {"request": ("cached_tokens", "session"), "experiment": ("void", "window_step_s"), "token": ("token_time_s",)}
OF_REQUESTS = ("arrival_s", "prompt_tokens", "output_tokens", "ttft_s", "e2el_s", "cached_tokens", "session", "token_s", "content")
MOST_CLIENTS, MOST_TOKENS, LONGEST_S = 2**20, 2**31, 1e7  # what a served run can be; beyond it a column means something else

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
    content: tuple[Content | None, ...] = ()  # of each prompt block by block, where that is told; None of one told nothing of

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
                content=self._content(i, said[session] if later else 0),
            )
            if session >= 0:
                said[session], back[session] = prompt + output, sent + float(self.e2el_s[i])
        return builder.build()

    def _content(self, i: int, said: int) -> Content | None:
        """What the prompt of request `i` shares, `said` tokens into its session."""
        if self.content:
            return self.content[i]
        return Grown(min(said, int(self.prompt_tokens[i]))) if said and self.kind == "sessions" else None


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
    check_attributes(attrs, path.name, SCHEMA, (SUITE,), ("gpu_name", "model", "weight_dtype"))
    told = {name: [n for n in names if n in data] for name, names in OPTIONAL.items()}
    times, counts = [n for n in LOG_COLUMNS if n.endswith("_s")], [n for n in LOG_COLUMNS if not n.endswith("_s")]
    of_requests = ("experiment_index", *LOG_COLUMNS, *told["request"])
    check_columns(data, path.name, "request", of_requests, numbers=(*counts, "experiment_index", *told["request"]), seconds=times)
    windows = [n for n in told["experiment"] if n.endswith("_s")]
    check_columns(data, path.name, "experiment", ("name", "kind", "n", *told["experiment"]), numbers=("n",), seconds=windows)
    check_columns(data, path.name, "token", told["token"], seconds=told["token"])
    complete = [i for i in range(data.sizes["experiment"]) if _complete(data, i)]
    if not complete:
        raise UsageError(f"{path.name}: no experiment that is not void")
    flags = str(attrs.get("plan_server_flags", "")) or re.sub(r"--num-gpu-blocks-override[ =]\d+", "", _starved_flags(data))
    return ServedRun(
        name=path.stem,
        gpu=get_gpu(str(attrs["gpu_name"])),
        model=model_of(attrs, path),
        precision=Precision(_dtype(attrs["weight_dtype"]), _dtype(attrs.get("kv_dtype", "bfloat16"))),
        limits=limits_of_flags(flags),
        tp=whole_flag(flags, "tensor-parallel-size") or 1,
        engine=f"{attrs.get('plan_engine', 'vllm')} {attrs.get('vllm_version', '')}".strip(),
        experiments=tuple(_experiment(data, i, path.name) for i in complete),
        notes=(str(attrs["note"]),) if attrs.get("note") else (),
    )


def _dtype(name: str) -> str:
    return DTYPE.get(str(name), str(name))


def _complete(data: Any, index: int) -> bool:
    """Whether the experiment was not voided: every stream of a batch must have succeeded."""
    return not str(data["void"].values[index]) if "void" in data else True


def _experiment(data: Any, index: int, file: str) -> Experiment:
    name = f"{file}: experiment {str(data['name'].values[index])!r}"
    where = np.flatnonzero(data["experiment_index"].values == index)
    where = where[np.argsort(data["arrival_s"].values[where], kind="stable")]
    column = {name: data[name].values[where].astype(float) for name in LOG_COLUMNS}
    _check_requests(column, where, name)
    clients = float(data["n"].values[index])
    if not (math.isnan(clients) or 0 <= clients <= MOST_CLIENTS):
        raise UsageError(f"{name}: n is not a number of clients ({clients:g})")
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
        session=_sessions(data, where, name),
        clients=0 if math.isnan(clients) else int(clients),
        window_step_s=float(data["window_step_s"].values[index]) if "window_step_s" in data else math.nan,
        token_s=_token_times(data, where),
        limits=limits_of_flags(starved) if kind == "burst" and (starved := _starved_flags(data)) else None,
    )


def _check_requests(column: dict[str, Array], where: NDArray[np.int64], name: str) -> None:
    """Raise UsageError unless there are requests, their tokens are counts, and each has its first token after it was sent, and its last
    no sooner.
    """
    if not where.size:
        raise UsageError(f"{name}: no requests")
    counts = [column[n] for n in ("prompt_tokens", "output_tokens")]
    counted = np.all([(c >= 1) & (c <= MOST_TOKENS) & (c == np.floor(c)) for c in counts], axis=0)
    first, last = column["first_token_s"], column["finish_s"]
    in_order = (np.abs(column["arrival_s"]) < LONGEST_S) & (first > 0) & (first <= last) & (last < LONGEST_S)
    for right, says in (
        (counted, "tokens are not whole numbers from 1 up"),
        (in_order, "needs 0 < first_token_s <= finish_s, from sending"),
        (column["arrival_s"] >= 0, "arrival_s is negative"),
    ):
        if not right.all():
            worst = int(where[np.flatnonzero(~right)[0]])
            raise UsageError(f"{name}, request {worst + 1} of the file: {says}")


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


def _sessions(data: Any, where: NDArray[np.int64], name: str) -> NDArray[np.int64] | None:
    """Session of each request; None when the experiment has none, or none of more than one turn."""
    if "session" not in data:
        return None
    told = data["session"].values[where]
    if not (np.abs(told) <= MOST_CLIENTS).all():
        raise UsageError(f"{name}: session is not a number of one ({told[~(np.abs(told) <= MOST_CLIENTS)][0]:g})")
    sessions = told.astype(np.int64)
    kept = sessions[sessions >= 0]
    return sessions if len(kept) > len(np.unique(kept)) else None


def first_part(experiment: Experiment, share: float) -> tuple[Experiment, Experiment]:
    """The first `share` of an experiment's requests (five at least), and the rest. Raises UsageError when nothing would be left."""
    count = max(5, int(len(experiment.arrival_s) * share))
    if count >= len(experiment.arrival_s):
        raise UsageError(f"{experiment.name}: {len(experiment.arrival_s)} requests are too few to learn from some and check the rest")
    return taken(experiment, slice(0, count), "first"), taken(experiment, slice(count, None), "rest")


def taken(experiment: Experiment, part: slice, suffix: str) -> Experiment:
    """These requests of an experiment, which is then named `NAME (suffix)`."""
    columns = {name: getattr(experiment, name)[part] for name in OF_REQUESTS if getattr(experiment, name) is not None}
    return replace(experiment, name=f"{experiment.name} ({suffix})", **columns)
