"""Measuring jobs: a suite on a device, for a model where the suite has one. Pre-flight, roofline, suite, one file."""

from __future__ import annotations

import importlib
import json
import os
import re
import signal
import sys
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from hw import machine
from hw.artifact import SCHEMA, write
from hw.engines.shapes import shape
from hw.journal import Journal
from hw.pace import terminate_as_interrupt
from sim import termination
from sim.errors import SimctlError

WRITING_S = 60.0  # an interrupted process ends its server and writes its file


class Suite(NamedTuple):
    """A suite: its module, and seconds to start and to measure without a budget, as seen on Hopper GPUs and on two CPU cores.

    The module has `run(job, journal, attrs)`, which fills the journal and adds to the attributes, and `dataset(records, attrs)`.
    """

    module: str
    about: str
    cuda: tuple[int, int]
    cpu: tuple[int, int] | None = None  # None: it needs CUDA
    models: str = "one"  # a job for each, for "all" together, or "none"
    engine: bool = False  # takes --tp, --quantization and the engine's limits
    roofline: bool = True  # the quick microbenchmarks are part of its file


SUITES = {
    "host": Suite("hw.suites.host", "how fast this host launches kernels and interprets", (3, 7), (1, 3), "none", roofline=False),
    "floor": Suite("hw.suites.floor", "roofline: copies, reads, GEMMs, launches, all-reduce", (0, 15), (0, 5), "none", roofline=False),
    "all-reduce": Suite("hw.suites.floor", "all-reduce by size over all GPUs", (0, 15), None, "none", roofline=False),
    "kernels": Suite("hw.suites.kernels", "our kernels beside the strongest alternatives present", (20, 200), None, "none", roofline=False),
    "decode": Suite("hw.suites.decode", "whole decode steps by our kernels", (15, 90)),
    "engine-grid": Suite("hw.suites.engine_grid", "vLLM stepped in process, every iteration timed", (90, 60), (20, 45), engine=True),
    "weight-axis": Suite("hw.suites.engine_grid", "the same of decodes over batch, for batch knees", (50, 15), (20, 60), engine=True),
    "layers": Suite("hw.suites.layers", "an engine's layers by rows, as quantized, and its experts", (90, 15), engine=True),
    "profile": Suite("hw.suites.profile", "the kernels of the same iterations", (100, 40), (20, 30), engine=True),
    "products": Suite("hw.suites.products", "GEMMs of a layer by rows", (10, 60), (0, 10), "all"),
    "served": Suite("hw.suites.served", "a server under load", (180, 120), (60, 70), engine=True),
}


@dataclass(frozen=True, slots=True)
class Job:
    """One measuring job. `budget_s` counts measuring, not the engine's start. `quantization` is the engine's name for it ("fp8")."""

    suite: str
    device: str
    model: str | None = None
    quantization: str | None = None
    budget_s: float | None = None
    seed: int = 0
    expect_gpu: str | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    tensor_parallel: int = 1
    replicas: int = 1  # servers behind a router, each on `tensor_parallel` GPUs of its own
    prefill: int = 0  # of them only read prompts, the others only answer; 0: each does both
    rates: tuple[float, ...] = (1.0, 4.0, 10.0, 20.0)  # of the served suite's open loops, as the next six
    experiments: tuple[str, ...] = ()  # names or patterns; none means all
    engine: str = "vllm"  # or "sglang": what a server of ours runs
    client: str = "tokens"  # or "text": vLLM's own client sends text, which the server tokenizes, beside ours
    iterations: bool = False  # write down what every iteration of the server carried
    engine_args: str = ""  # further words of the engine's command line
    url: str | None = None  # of a running server, instead of one of our own; `model` is then its name for the model
    vocab_size: int = 32000  # prompts sent to `url` hold token ids below this
    endpoint: str = "completions"  # of `url`, or "chat"
    prompts: str = "tokens"  # sent to `url`, or "text"
    headers: dict[str, str] = field(default_factory=dict, repr=False)  # for `url`; they may hold keys: never to be written
    cells: str | None = None  # a file of cells, instead of the grid's own
    models: tuple[str, ...] = ()  # of the suite products, in place of `model`; none means all that are known
    products: str | None = None  # a list of products, instead of `models`
    label: str | None = None  # ends the file's name: a run of part of a suite is not taken for the whole

    @property
    def stem(self) -> str:
        """File name without suffix: suite, models, client where not our own, weight dtype, GPUs a model is spread over, label."""
        parts = [
            self.suite,
            self.model,
            *self.models,
            Path(self.products).stem.removeprefix("products_") if self.products else None,
            "url" if self.url else None,
            self.engine if self.engine != "vllm" else None,
            self.client if self.client != "tokens" else None,
            self.quantization,
            f"tp{self.tensor_parallel}" if self.tensor_parallel > 1 else None,
            f"p{self.prefill}d{self.replicas - self.prefill}" if self.prefill else f"x{self.replicas}" if self.replicas > 1 else None,
            self.label,
        ]
        return "_".join(re.sub(r"[^a-z0-9.]+", "-", p.lower()) for p in parts if p)

    @property
    def seconds(self) -> tuple[int, int]:
        """About how long it takes to start, and to measure."""
        suite = SUITES[self.suite]
        start, measuring = suite.cuda if self.device == "cuda" else suite.cpu or suite.cuda
        return 0 if self.url else start, min(measuring, round(self.budget_s)) if self.budget_s else measuring

    @property
    def estimate(self) -> str:
        """ "about 110 s: 90 to start, 20 measuring"."""
        start, measuring = self.seconds
        return f"about {start + measuring} s" + (f": {start} to start, {measuring} measuring" if start else "")


def run(job: Job, out: Path, *, resume: bool = False) -> list[Path]:
    """Do one job and write its file into `out`. Returns its path, in a list that is empty where nothing was measured.

    Interrupted (Ctrl-C or a termination signal), out of budget or failed half-way, it still writes what it has, marked
    `finished = 0`, and keeps the journal so that `resume` can go on. Raises UsageError or SimctlError from the gates.
    """
    out.mkdir(parents=True, exist_ok=True)
    suite = SUITES[job.suite]
    module = importlib.import_module(suite.module)
    attrs = {"schema": SCHEMA, "suite": job.suite, **_facts(job), "seed": job.seed, "finished": 0}
    if job.model and not job.url:
        config = shape(job.model)
        stored = config.get("quantization_config", {}).get("quant_method", config["torch_dtype"])
        attrs |= {"model": job.model, "model_config": json.dumps(config), "weight_dtype": job.quantization or stored}
        kv = re.search(r"--kv-cache-dtype[= ](\S+)", job.engine_args)
        attrs |= {"kv_dtype": kv[1] if kv else config["torch_dtype"], "tensor_parallel_size": job.tensor_parallel}
        attrs |= {"engine_args": job.engine_args} if job.engine_args else {}
    where = attrs["gpu_name"] if attrs["gpu_name"] != "none" else attrs["cpu"]
    print(f"{job.stem}: {where}, {job.estimate}, budget {job.budget_s or 'none'}", file=sys.stderr, flush=True)
    header = {k: v for k, v in asdict(job).items() if k not in ("budget_s", "headers")} | {"gpu": attrs["gpu_name"]}
    paths = []
    with terminate_as_interrupt():
        journal = Journal(out / f"{job.stem}.journal.jsonl", header, resume=resume)
        try:
            if suite.roofline and not job.url:
                from hw.suites import floor

                attrs |= floor.headline(floor.measure(job.device, quick=True))
            module.run(job, journal, attrs)
            attrs |= machine.after(job.device) if not job.url else {}
        finally:
            if (data := module.dataset(journal.records, attrs) if journal.records else None) is not None:
                paths.append(write(data, out / f"{job.stem}.nc"))
            if attrs["finished"]:
                journal.path.unlink(missing_ok=True)
            elif journal.records:
                print(f"{job.stem}: what was measured is kept in {out}; --resume goes on", file=sys.stderr, flush=True)
    return paths


def _facts(job: Job) -> dict[str, Any]:
    if job.url:  # a server whose machine is not ours to read
        facts = machine.provenance("cpu")
        return facts | {"device": "server by URL", "client_cpu": facts["cpu"], "cpu": "unknown", "gpu_name": job.expect_gpu or "unknown"}
    machine.resolve_device(job.device)
    return machine.check(job.device, job.expect_gpu, count=job.tensor_parallel * job.replicas) | machine.provenance(job.device)


def run_apart(job: Job, out: Path, *, resume: bool = False, log: Path | None = None) -> list[Path]:
    """`run` in a process of its own, since an engine leaves device memory and threads behind. What it prints goes to `log`, if given.

    Ctrl-C reaches the process by itself, a termination signal is handed on; either is raised once it has written what it has. Raises
    what the job raised; SimctlError when the process died.
    """
    context = get_context("spawn")
    answer, child_end = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(job, out, resume, log, child_end))
    process.start()
    child_end.close()

    def hand_on(*_: Any) -> None:
        termination.note()
        process.terminate()

    before = signal.signal(signal.SIGTERM, hand_on)
    try:
        result = answer.recv()
    except EOFError:
        result = SimctlError(f"measuring {job.suite}: the process died{f', see {log}' if log else ''}")
    finally:
        signal.signal(signal.SIGTERM, before)
        process.join(WRITING_S)
    if isinstance(result, BaseException):
        raise result
    return list(result)


def _child(job: Job, out: Path, resume: bool, log: Path | None, answer: Connection) -> None:
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as sink:
            os.dup2(sink.fileno(), 1)
            os.dup2(sink.fileno(), 2)
    try:
        answer.send(run(job, out, resume=resume))
    except (KeyboardInterrupt, SimctlError, OSError) as error:
        answer.send(error)
