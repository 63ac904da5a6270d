"""The served suite as a job: floors, a server, the plan; then a server with little KV, the burst; files."""

from __future__ import annotations

import asyncio
import json
import math
import tempfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from hw.artifact import write
from hw.engines import llamacpp_server, vllm_server
from hw.engines.shapes import shape
from hw.journal import Journal
from hw.pace import Budget
from hw.serve.client import Target
from hw.serve.identify import counters
from hw.serve.iterations import by_experiment, write_table
from hw.suites import floor
from hw.suites import served as suite
from hw.suites import served_plan as plans
from sim.errors import UsageError

# The burst asks for more KV than its server has, in requests that outgrow their first blocks: it must queue and preempt.
# cuda: 1024 blocks of 16 tokens for 48 x (1024 + 128); cpu: 12 blocks of 128 tokens for 24 x (96 + 64).
STARVED_BLOCKS = {"cuda": 1024, "cpu": 12}
BURST = {"cuda": (48, 1024, 128), "cpu": (24, 96, 64)}  # requests, prompt tokens, output tokens
# Above every prompt of a phase and below the KV of the starved server. Equal for both on a GPU: the second server reuses the compilation.
MAX_MODEL_LEN = {("cuda", "plan"): 8192, ("cuda", "starved"): 8192, ("cpu", "plan"): None, ("cpu", "starved"): 1024}


def run(job: Any, out: Path, journal: Journal, facts: dict[str, Any]) -> list[Path]:
    if job.model is None:
        raise UsageError("served needs a model")
    config = shape(job.model)
    attrs: dict[str, Any] = facts | floor.headline(floor.measure(job.device, quick=True))
    attrs |= {"model": job.model, "model_config": json.dumps(config), "seed": job.seed, "finished": 0, "floor_library": floor.library()}
    attrs |= {"weight_dtype": job.quantization or config["torch_dtype"], "kv_dtype": config["torch_dtype"]}
    serve, flags = _engine(job)
    phases = {"plan": flags}
    if job.engine == "vllm":  # the engine whose KV blocks can be set
        phases["starved"] = [*flags, "--num-gpu-blocks-override", str(STARVED_BLOCKS[job.device])]
    if not journal.records:
        (out / f"{job.stem}.iterations.log").unlink(missing_ok=True)  # of a run that is not gone on with
    chosen = chosen_of({e.name for phase in phases for e in work_of(phase, Target("http://none", ""), config["vocab_size"], job)}, job)
    try:
        for phase, phase_flags in phases.items():
            left = [e.name for e in work_of(phase, Target("http://none", ""), config["vocab_size"], job) if e.name in chosen]
            if all(name in journal for name in left):
                continue
            log = out / f"{job.stem}.{phase}.log"
            recorded = {"iterations": out / f"{job.stem}.iterations.log"} if job.iterations else {}
            with tempfile.TemporaryDirectory() as folder, serve(
                job.model, Path(folder), device=job.device, flags=phase_flags, log=log,
                max_model_len=MAX_MODEL_LEN[job.device, phase], **recorded,
            ) as server:  # fmt: skip
                attrs |= {f"{phase}_{k}": v for k, v in server.facts.items()}
                target = Target(server.url, server.model, temperature=1.0 if "num_experts" in config else 0.0)
                work = [e for e in work_of(phase, target, config["vocab_size"], job) if e.name in chosen]
                done = suite.measure(work, target, config["vocab_size"], journal, Budget(job.budget_s), job.stem, local=True)
                attrs[f"finished_{phase}"] = done["finished"]
                attrs |= {f"{phase}_{k}": v for k, v in asyncio.run(counters(target)).items()}
        attrs["finished"] = int(all(name in journal for name in chosen))
    finally:
        paths = []
        if journal.records:
            data = suite.dataset(journal.records, attrs)
            paths = write(data, out / f"{job.stem}.nc", {"experiment": "", "request": ".requests"})
            paths += _iterations(out / f"{job.stem}.iterations.log", journal, keep=not attrs["finished"])
            if attrs["finished"]:
                journal.path.unlink(missing_ok=True)
    return paths


def _iterations(log: Path, journal: Journal, *, keep: bool) -> list[Path]:
    """The servers' log as a table of the journal's experiments; nothing where they kept none."""
    if not log.is_file():
        return []
    begins_s = [float(record["row"].get("began_unix_s", math.inf)) for record in journal.records]
    with log.open(encoding="ascii") as lines:
        table = write_table(by_experiment(lines, begins_s), log.with_suffix(".csv.gz"))
    if not keep:
        log.unlink()
    return [table]


def work_of(phase: str, target: Target, vocab: int, job: Any) -> list[plans.Experiment]:
    """The experiments of a phase, each phase being a server of its own; their names depend on no server."""
    cuda = job.device == "cuda"
    if phase == "plan":
        rungs = (1, 2, 4, 8, 16, 32, 64, 128) if cuda else (1, 2, 4, 8)
        return plans.plan(target, vocab, job.seed, job.rates, rungs, plans.GPU_PLAN if cuda else plans.CPU_PLAN)
    return [plans.burst(target, vocab, job.seed, *BURST[job.device])]


def chosen_of(names: set[str], job: Any) -> set[str]:
    """The experiments the job asks for. Raises UsageError when its patterns name none."""
    chosen = {n for n in names if any(fnmatch(n, pattern) for pattern in job.experiments or ("*",))}
    if not chosen:
        raise UsageError(f"--experiments {','.join(job.experiments)!r} names none of: {', '.join(sorted(names))}")
    return chosen


def _engine(job: Any) -> tuple[Any, list[str]]:
    """(how to start the server, its flags) for the engine asked for."""
    if job.engine == "llamacpp":
        if job.quantization:
            raise UsageError("engine llamacpp takes no weight dtype here")
        return llamacpp_server.serve, ["--parallel", str(job.max_num_seqs), "--batch", str(job.max_num_batched_tokens)]
    flags = ["--max-num-seqs", str(job.max_num_seqs), "--max-num-batched-tokens", str(job.max_num_batched_tokens)]
    return vllm_server.serve, flags + (["--quantization", job.quantization] if job.quantization else [])
