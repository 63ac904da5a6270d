"""Measured served runs as experiments: who sent what when, and when the tokens came back.

Read here from a `served` measurement (netCDF, one run of several experiments); logs of other tools are read by calibrate.logs.read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate.measurement import check_attributes, check_columns, model_of, open_measurement, precision_of, whole_number
from calibrate.served.flags import read_flags
from sim.cluster.pools import DECODE, PREFILL
from sim.engine.versions import NEWEST, known_version
from sim.errors import UsageError
from sim.specs.gpu import GpuSpec
from sim.specs.gpus import get_gpu
from sim.specs.linear_kernels import AUTO
from sim.specs.model import ModelSpec
from sim.specs.parallel import NO_PARALLEL, Parallel
from sim.specs.precision import Precision
from sim.study.deployment import Deployment, Limits, blocks_in
from sim.study.fleet_spec import LINKS, Fleet, PoolSpec
from sim.workload.content import Content, Grown, SystemPrompt
from sim.workload.trace import Trace, TraceBuilder

SCHEMA, SUITE = "simctl-measurement/1", "served"
LOG_COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens", "first_token_s", "finish_s")
AGAIN = re.compile(r"(.+) again(?: (\d+))?")  # name of a replicate: all that tells it in files up to protocol served/5
PLUGIN = "--additional-config"  # of a server whose attention is a plugin's, which nothing here prices
WAIT_S = 1e-6  # unit of token_wait_us
OF_REQUESTS = ("arrival_s", "prompt_tokens", "output_tokens", "ttft_s", "e2el_s", "cached_tokens", "session", "token_s", "content")
MOST_CLIENTS, MOST_TOKENS, LONGEST_S = 2**20, 2**31, 1e7  # what a served run can be; beyond it a column means something else

Array = NDArray[np.float64]


def tpot(ttft_s: Array, e2el_s: Array, output_tokens: NDArray[np.int64]) -> Array:
    """Time per output token after the first; NaN for a request of one token."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(output_tokens > 1, (e2el_s - ttft_s) / (output_tokens - 1), np.nan))


@dataclass(frozen=True)
class Experiment:
    """Requests in order of sending; every array has shape [request], seconds and tokens. `ttft_s` and `e2el_s` count from sending."""

    name: str  # a label: rate, clients and replicate are fields
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
    rate_per_s: float = math.nan  # offered, of an open loop
    replicate: int = 0  # how often the same arrivals and sizes were sent before
    window_step_s: float = math.nan  # true-decode window of a ladder rung: seconds per step
    token_s: tuple[Array, ...] | None = None  # when each token of each request came, from the first sending, where it was written down
    limits: Limits | None = None  # of the server it ran on, where that is not the run's
    text: bool = False  # prompts were text, and the server tokenized them
    content: tuple[Content | None, ...] = ()  # of each prompt block by block, where that is known; None where it is not
    stated: Mapping[str, float] | None = None  # seconds by metric, means or p99, of a file that says nothing of single requests

    @property
    def tpot_s(self) -> Array:
        """Time per output token after the first; NaN for a request of one token."""
        return tpot(self.ttft_s, self.e2el_s, self.output_tokens)

    @property
    def load(self) -> str:
        """Name of the load, the same for its replicates."""
        again = AGAIN.fullmatch(self.name) if self.replicate else None
        return again[1] if again else self.name

    def part(self, chosen: slice | NDArray[np.bool_], suffix: str) -> Experiment:
        """Some of the requests, as an experiment named `NAME (suffix)`."""
        columns = {name: getattr(self, name)[chosen] for name in OF_REQUESTS if getattr(self, name) is not None}
        return replace(self, name=f"{self.name} ({suffix})", **columns)

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
        """Prefix that the prompt of request `i` shares, `said` tokens into its session."""
        if said and self.kind == "sessions":  # a system prompt is part of what was said
            return Grown(min(said, int(self.prompt_tokens[i])))
        return self.content[i] if self.content else None


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
    replicas: int = 1  # behind a router that takes them in turn
    prefill: int = 0  # of them only read prompts, whose KV goes to the others over the GPUs' own links
    parallel: Parallel = NO_PARALLEL

    @property
    def deployment(self) -> Deployment:
        """The deployment that serves; with a prefill pool, that pool."""
        count = self.prefill or self.replicas
        return Deployment(self.model, self.gpu, self.precision, self.tp, self.limits, count, parallel=self.parallel)

    @property
    def fleet(self) -> Fleet | None:
        """A prefill and a decode pool, where there are such."""
        if not self.prefill:
            return None
        pools = ((PREFILL, self.prefill), (DECODE, self.replicas - self.prefill))
        return Fleet(tuple(PoolSpec(replace(self.deployment, replicas=n), role, role, bytes_per_s=LINKS["nvlink"]) for role, n in pools))


def by_plugin(run: ServedRun) -> bool:
    """Whether a plugin's kernels serve, so that errors would be of asking for others."""
    return any(PLUGIN in note for note in run.notes)


def read_served(path: Path, gpu: GpuSpec | None = None, given: Deployment | None = None) -> ServedRun:
    """Read a `served` measurement, of `gpu` where no catalogue has it (a CPU). One taken by URL does not know what it ran: `given` says it,
    with the limits that the server did not tell. UsageError names the file and its fault; OSError when it cannot be read.
    """
    data = _checked(path)
    attrs = data.attrs
    experiments = tuple(_experiment(data, i, path.name) for i in _complete(data, path))
    if by_url(attrs):
        if given is None:
            raise UsageError(f"{path.name}: measured by URL, which does not tell the weights and the GPU: say --model and --gpu")
        return _by_url(path, attrs, given, experiments)
    check_attributes(attrs, path.name, SCHEMA, (SUITE,), ("gpu_name", "model", "weight_dtype"))
    flags = str(attrs.get("plan_server_flags", "")) or re.sub(r"--num-gpu-blocks-override[ =]\d+", "", _starved_flags(data))
    engine = str(attrs.get("plan_engine", "vllm"))
    said = read_flags(flags, float(attrs.get("plan_lora_share", 1.0)), engine)
    version, newer = _engine_version(str(attrs.get("vllm_version", ""))) if engine == "vllm" else (NEWEST, ())
    precision = precision_of(attrs)
    run = ServedRun(
        name=path.stem,
        gpu=gpu or get_gpu(str(attrs["gpu_name"])),
        model=model_of(attrs, path),
        precision=precision,
        limits=replace(said.limits, engine_version=version, linear_backend=precision.kernel or AUTO),
        tp=said.tp,
        engine=f"{engine} {attrs.get('vllm_version' if engine == 'vllm' else 'plan_engine_version', '')}".strip(),
        experiments=experiments,
        notes=((str(attrs["note"]),) if attrs.get("note") else ()) + newer + said.unread,
        replicas=int(attrs.get("plan_replicas", 1)),
        prefill=int(attrs.get("plan_prefill_replicas", 0)),
        parallel=said.parallel,
    )
    if engine == "sglang" and (kv_tokens := whole_number(attrs, "plan_kv_tokens", 0, path)):
        run = replace(run, limits=replace(run.limits, num_gpu_blocks=kv_tokens // run.limits.block_size))
    if said.pool_bytes is None or run.limits.num_gpu_blocks is not None:
        return run
    if run.model.state_layers:
        return replace(run, notes=(*run.notes, "its server's --kv-cache-memory-bytes is not simulated: recurrent state shares that memory"))
    return replace(run, limits=replace(run.limits, num_gpu_blocks=blocks_in(run.deployment, said.pool_bytes)))


def _engine_version(said: str) -> tuple[str, tuple[str, ...]]:
    """The version whose rules a server of vLLM follows, and a note where it is newer than all that are known."""
    if not (found := re.match(r"\d+\.\d+", said)):
        return NEWEST, ()
    if known := known_version(found[0]):
        return known, ()
    return NEWEST, (f"its server's vLLM {found[0]} decides as {NEWEST} does",)


def read_experiments(path: Path) -> tuple[Experiment, ...]:
    """Requests and answers of a `served` measurement, whatever served it. Errors as `read_served`."""
    data = _checked(path)
    return tuple(_experiment(data, i, path.name) for i in _complete(data, path))


def by_url(attrs: dict[str, Any]) -> bool:
    """Whether a served measurement was taken of somebody's server."""
    return str(attrs.get("device")) == "server by URL"


def _by_url(path: Path, attrs: dict[str, Any], given: Deployment, experiments: tuple[Experiment, ...]) -> ServedRun:
    limits = given.limits
    said = {
        "num_gpu_blocks": whole_number(attrs, "kv_blocks", 0, path),
        "max_num_seqs": whole_number(attrs, "max_num_seqs", 0, path),
        "max_model_len": whole_number(attrs, "max_model_len", 0, path),
    }
    used: dict[str, Any] = {name: value for name, value in said.items() if value and getattr(limits, name) in (None, "auto")}
    if size := whole_number(attrs, "block_size_tokens", 0, path):
        used["block_size"] = size
    engine = f"{attrs.get('engine', 'unknown')} {attrs.get('engine_version', '')}".strip()
    note = f"measured by URL; the server reports {', '.join(f'{name} {value}' for name, value in used.items()) or 'no limits'}"
    return ServedRun(
        path.stem, given.gpu, given.model, given.precision, replace(limits, **used), given.tp, engine, experiments, (note,), given.replicas
    )


def _checked(path: Path) -> Any:
    """The measurement, its columns checked and those that older files lack filled in."""
    data = open_measurement(path)
    check_attributes(data.attrs, path.name, SCHEMA, (SUITE,), ())
    times, counts = [n for n in LOG_COLUMNS if n.endswith("_s")], ("experiment_index", "prompt_tokens", "output_tokens")
    check_columns(data, path.name, "request", ("experiment_index", *LOG_COLUMNS), numbers=counts, seconds=times)
    check_columns(data, path.name, "experiment", ("name", "kind", "n"), numbers=("n",))
    data = _with_optional_columns(data)
    check_columns(data, path.name, "request", ("cached_tokens", "session", "turn"), numbers=("cached_tokens", "session", "turn"))
    numbers = ("rate_per_s", "replicate", "window_step_s", "shared_tokens", "documents")
    check_columns(data, path.name, "experiment", ("void", *numbers), numbers=numbers, seconds=("window_step_s",))
    if "token_wait_us" in data:
        data = with_token_times(data, path.name)
    elif "token_time_s" in data:
        check_columns(data, path.name, "token", ("token_time_s",), seconds=("token_time_s",))
    return data


def with_token_times(data: Any, name: str) -> Any:
    """The measurement with token_time_s, as older files have it: s from the experiment's first send, request by request.

    UsageError unless there are as many tokens of every request as output_tokens says.
    """
    check_columns(data, name, "token", ("token_request", "token_wait_us"), numbers=("token_request", "token_wait_us"))
    with np.errstate(invalid="ignore"):  # what is no number becomes a count that no request has
        request, counts = (data[column].values.astype(np.int64) for column in ("token_request", "output_tokens"))
    if (request < 0).any() or (request >= len(counts)).any():
        raise UsageError(f"{name}: token_request names requests that are not there")
    found = np.bincount(request, minlength=len(counts))
    if wrong := np.flatnonzero(found != counts).tolist():
        says = f"output_tokens says {counts[wrong[0]]}, token_request has {found[wrong[0]]}"
        raise UsageError(f"{name}, request {wrong[0] + 1} of the file: {says}")
    passed = np.cumsum(data["token_wait_us"].values.astype(np.int64))
    begins = np.flatnonzero(np.diff(data["experiment_index"].values[request], prepend=-1))  # of tokens: another experiment's first
    before = np.insert(passed, 0, 0)[begins]
    times = WAIT_S * (passed - np.repeat(before, np.diff(begins, append=len(request))))
    return data.assign(token_time_s=("token", times[np.argsort(request, kind="stable")]))


def _complete(data: Any, path: Path) -> list[int]:
    """Experiments of which every stream succeeded."""
    complete = [i for i, void in enumerate(data["void"].values) if not str(void)]
    if not complete:
        raise UsageError(f"{path.name}: no experiment that is not void")
    return complete


def _with_optional_columns(data: Any) -> Any:
    """The measurement with the columns that older files lack."""
    again = [AGAIN.fullmatch(str(name)) for name in data["name"].values]
    columns: dict[str, tuple[str, Any]] = {
        "cached_tokens": ("request", math.nan),
        "session": ("request", -1),
        "void": ("experiment", ""),
        "window_step_s": ("experiment", math.nan),
        "rate_per_s": ("experiment", math.nan),
        "text": ("experiment", [str(name).startswith("text ") for name in data["name"].values]),  # up to protocol served/6
        "shared_tokens": ("experiment", 0),  # up to protocol served/7
        "documents": ("experiment", 0),  # up to protocol served/9
        "turn": ("request", 0),
        "replicate": ("experiment", [int(found[2] or 1) if found else 0 for found in again]),
    }
    lacking = {name: column for name, column in columns.items() if name not in data}
    return data.assign({name: (dim, np.broadcast_to(value, data.sizes[dim])) for name, (dim, value) in lacking.items()})


def _experiment(data: Any, index: int, file: str) -> Experiment:
    name, kind = str(data["name"].values[index]), str(data["kind"].values[index])
    label = f"{file}: experiment {name!r}"
    where = np.flatnonzero(data["experiment_index"].values == index)
    where = where[np.argsort(data["arrival_s"].values[where], kind="stable")]
    column = {n: data[n].values[where].astype(float) for n in (*LOG_COLUMNS, "cached_tokens", "session", "turn")}
    _check_requests(column, where, label)
    clients = float(data["n"].values[index])
    if not (math.isnan(clients) or 0 <= clients <= MOST_CLIENTS):
        raise UsageError(f"{label}: n is not a number of clients ({clients:g})")
    session = column["session"].astype(np.int64)
    shared, documents = (int(data[n].values[index]) for n in ("shared_tokens", "documents"))
    texts = [f"{client}: {turn % documents}" if documents else "all" for client, turn in zip(session, column["turn"], strict=True)]
    several = len(kept := session[session >= 0]) > len(np.unique(kept))
    return Experiment(
        name=name,
        kind=kind,
        arrival_s=column["arrival_s"],
        prompt_tokens=column["prompt_tokens"].astype(np.int64),
        output_tokens=column["output_tokens"].astype(np.int64),
        ttft_s=column["first_token_s"],
        e2el_s=column["finish_s"],
        cached_tokens=None if np.isnan(column["cached_tokens"]).all() else column["cached_tokens"],
        session=session if several else None,
        clients=0 if math.isnan(clients) else int(clients),
        rate_per_s=float(data["rate_per_s"].values[index]),
        replicate=int(data["replicate"].values[index]),
        window_step_s=float(data["window_step_s"].values[index]),
        token_s=token_times(data, where),
        limits=read_flags(starved, engine=str(data.attrs.get("starved_engine", "vllm"))).limits
        if kind == "burst" and (starved := _starved_flags(data))
        else None,
        text=bool(data["text"].values[index]),
        content=tuple(SystemPrompt(text, shared) for text in texts) if shared else (),
    )


def _check_requests(column: dict[str, Array], where: NDArray[np.int64], name: str) -> None:
    """Raise UsageError unless there are requests, and each has counts of tokens, times in order, and a session's number."""
    if not where.size:
        raise UsageError(f"{name}: no requests")
    prompt, output, sent, first, last = (column[n] for n in ("prompt_tokens", "output_tokens", "arrival_s", "first_token_s", "finish_s"))
    counts = [(n >= 1) & (n <= MOST_TOKENS) & (n == np.floor(n)) for n in (prompt, output)]
    for right, says in (
        (np.all(counts, axis=0), "tokens are not whole numbers from 1 up"),
        (
            (np.abs(sent) < LONGEST_S) & (first > 0) & (first <= last) & (last < LONGEST_S),
            "needs 0 < first_token_s <= finish_s, from sending",
        ),
        (sent >= 0, "arrival_s is negative"),
        (np.abs(column["session"]) <= MOST_CLIENTS, "session is not a number of one"),
    ):
        if not right.all():
            raise UsageError(f"{name}, request {int(where[np.flatnonzero(~right)[0]]) + 1} of the file: {says}")


def _starved_flags(data: Any) -> str:
    """Flags of the second server, with little KV, on which a burst ran."""
    return str(data.attrs.get("starved_server_flags", ""))


def token_times(data: Any, where: NDArray[np.int64]) -> tuple[Array, ...] | None:
    """Arrival of every token of these requests, s from the experiment's first send; None in files without."""
    counts = data["output_tokens"].values.astype(np.int64)
    if "token_time_s" not in data or counts.sum() != data.sizes["token"]:
        return None
    every, ends = data["token_time_s"].values, np.cumsum(counts)
    return tuple(every[ends[i] - counts[i] : ends[i]].astype(float) for i in where)
