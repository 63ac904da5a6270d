"""One measuring job: a suite on a device, for a model where the suite has one. Pre-flight, floors, suite, files."""

from __future__ import annotations

import json
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hw import preflight, provenance
from hw.artifact import SCHEMA, table, write
from hw.journal import Journal
from hw.pace import Budget
from sim.errors import SimctlError

SUITES = ("floor", "engine-grid", "served")


@dataclass(frozen=True, slots=True)
class Job:
    """What to measure. `budget_s` counts measuring, not the engine's start. `quantization` is the engine's name for it ("fp8")."""

    suite: str
    device: str
    model: str | None = None
    quantization: str | None = None
    budget_s: float | None = None
    seed: int = 0
    expect_gpu: str | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    rates: tuple[float, ...] = (1.0, 4.0, 10.0, 20.0)

    @property
    def stem(self) -> str:
        """File name without suffix: suite, model, weight dtype."""
        parts = [self.suite, self.model, self.quantization]
        return "_".join(re.sub(r"[^a-z0-9.]+", "-", p.lower()) for p in parts if p)


def run(job: Job, out: Path, *, resume: bool = False) -> list[Path]:
    """Do one job and write its files into `out`. Returns their paths.

    Interrupted (Ctrl-C or a termination signal), out of budget or failed half-way, it still writes what it has, marked
    `finished = 0`, and keeps the journal so that `resume` can go on. Raises UsageError or SimctlError from the gates.
    """
    out.mkdir(parents=True, exist_ok=True)
    gates = preflight.check(job.device, job.expect_gpu)
    facts = provenance.collect(job.device) | gates
    print(f"{job.stem}: {facts['gpu_name']}, budget {job.budget_s or 'none'} s", file=sys.stderr, flush=True)
    journal_path = out / f"{job.stem}.journal.jsonl"
    header = {k: v for k, v in asdict(job).items() if k != "budget_s"} | {"gpu": facts["gpu_name"]}
    with _terminate_as_interrupt():
        journal = Journal(journal_path, header, resume=resume)
        return _SUITE[job.suite](job, out, journal, facts)


def _floor(job: Job, out: Path, journal: Journal, facts: dict[str, Any]) -> list[Path]:
    import xarray as xr

    from hw.suites import floor

    rows = floor.measure(job.device)
    journal.add("floor", rows=rows)
    attrs = {"schema": SCHEMA, "suite": "floor", "finished": 1, **facts}
    paths = write(xr.Dataset(table("row", rows, floor.DESCRIBED), attrs=attrs), out / f"{job.stem}.nc", {"row": ""})
    journal.path.unlink()
    return paths


def _engine_grid(job: Job, out: Path, journal: Journal, facts: dict[str, Any]) -> list[Path]:
    from hw.cells import engine_grid
    from hw.engines import vllm_inprocess
    from hw.engines.shapes import shape
    from hw.suites import engine_grid as suite
    from hw.suites import floor

    if job.model is None:
        raise SimctlError("engine-grid needs a model")
    config = shape(job.model)
    attrs: dict[str, Any] = facts | floor.headline(floor.measure(job.device, quick=True))
    attrs |= {
        "model": job.model,
        "model_config": json.dumps(config),
        "weight_dtype": job.quantization or config["torch_dtype"],
        "kv_dtype": config["torch_dtype"],
        "tensor_parallel_size": 1,
        "seed": job.seed,
        "finished": 0,
    }
    engine = None
    try:
        with tempfile.TemporaryDirectory() as folder:
            engine = vllm_inprocess.start(
                job.model, Path(folder), device=job.device, seed=job.seed, quantization=job.quantization,
                max_num_seqs=job.max_num_seqs, max_num_batched_tokens=job.max_num_batched_tokens,
            )  # fmt: skip
            attrs |= engine.describe()
            cells = engine_grid(
                np.random.default_rng(job.seed), token_budget=job.max_num_batched_tokens, kv_tokens=engine.kv_tokens,
                max_context=attrs["max_model_len"], max_seqs=job.max_num_seqs, scale=1 if job.device == "cuda" else 16,
            )  # fmt: skip
            print(f"{job.stem}: engine up in {engine.load_s:.0f} s, {len(cells)} cells", file=sys.stderr, flush=True)
            budget = Budget(job.budget_s)
            attrs |= suite.measure(engine, cells, journal, budget, np.random.default_rng(job.seed + 1), job.stem)
            attrs["measuring_s"] = round(budget.spent_s, 1)
        if job.device == "cuda":
            attrs |= {f"after_{k}": v for k, v in provenance.query_gpus()[0].items() if k.startswith(("clock_sm", "temp", "power_w"))}
    finally:
        paths = []
        if journal.records:
            data = suite.dataset(journal.records, attrs)
            paths = write(data, out / f"{job.stem}.nc", {"cell": "", "iteration": ".iterations"})
            if attrs["finished"]:
                journal.path.unlink()
        if engine is not None:
            engine.close()
    return paths


def _served(job: Job, out: Path, journal: Journal, facts: dict[str, Any]) -> list[Path]:
    from hw.engines import vllm_server
    from hw.engines.shapes import shape
    from hw.serve.client import Target
    from hw.suites import floor
    from hw.suites import served as suite

    if job.model is None:
        raise SimctlError("served needs a model")
    config, cuda = shape(job.model), job.device == "cuda"
    attrs: dict[str, Any] = facts | floor.headline(floor.measure(job.device, quick=True))
    attrs |= {"model": job.model, "model_config": json.dumps(config), "seed": job.seed, "finished": 0}
    attrs |= {"weight_dtype": job.quantization or config["torch_dtype"], "kv_dtype": config["torch_dtype"]}
    flags = ["--max-num-seqs", str(job.max_num_seqs), "--max-num-batched-tokens", str(job.max_num_batched_tokens)]
    flags += ["--quantization", job.quantization] if job.quantization else []
    starved = [*flags, "--num-gpu-blocks-override", "1024"] if cuda else []
    try:
        for phase in ("plan", "starved") if cuda else ("plan",):
            with tempfile.TemporaryDirectory() as folder, vllm_server.serve(
                job.model, Path(folder), device=job.device, flags=starved if phase == "starved" else flags, log=out / f"{job.stem}.{phase}.log"
            ) as server:  # fmt: skip
                attrs |= {f"{phase}_{k}": v for k, v in server.facts.items()}
                target = Target(server.url, server.model, temperature=1.0 if "num_experts" in config else 0.0)
                vocab = config["vocab_size"]
                if phase == "plan":
                    work = suite.plan(
                        target, vocab, job.seed, scale=1 if cuda else 16, rates=job.rates, duration_s=20.0 if cuda else 8.0,
                        rungs=(1, 2, 4, 8, 16, 32, 64, 128) if cuda else (1, 2, 4, 8),
                    )  # fmt: skip
                else:  # 16384 KV tokens for a demand of 48 x (1024 + 128)
                    work = [suite.burst(target, vocab, job.seed, 48, 1024, 128)]
                done = suite.measure(work, target, vocab, journal, Budget(job.budget_s), job.stem)
                attrs[f"finished_{phase}"] = done["finished"]
        attrs["finished"] = int(all(v for k, v in attrs.items() if k.startswith("finished_")))
    finally:
        paths = []
        if journal.records:
            data = suite.dataset(journal.records, attrs)
            paths = write(data, out / f"{job.stem}.nc", {"experiment": "", "request": ".requests"})
            if attrs["finished"]:
                journal.path.unlink()
    return paths


_SUITE = {"floor": _floor, "engine-grid": _engine_grid, "served": _served}


@contextmanager
def _terminate_as_interrupt() -> Iterator[None]:
    """A termination signal ends the job as Ctrl-C does, so that its data are written."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
