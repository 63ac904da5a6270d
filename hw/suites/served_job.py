"""The served suite as a job: floors, a server, the plan; then a server with little KV, the burst; files."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from hw.artifact import write
from hw.engines import vllm_server
from hw.engines.shapes import shape
from hw.journal import Journal
from hw.pace import Budget
from hw.serve.client import Target
from hw.suites import floor
from hw.suites import served as suite
from sim.errors import UsageError


def run(job: Any, out: Path, journal: Journal, facts: dict[str, Any]) -> list[Path]:
    if job.model is None:
        raise UsageError("served needs a model")
    config, cuda = shape(job.model), job.device == "cuda"
    attrs: dict[str, Any] = facts | floor.headline(floor.measure(job.device, quick=True))
    attrs |= {"model": job.model, "model_config": json.dumps(config), "seed": job.seed, "finished": 0}
    attrs |= {"weight_dtype": job.quantization or config["torch_dtype"], "kv_dtype": config["torch_dtype"]}
    flags = ["--max-num-seqs", str(job.max_num_seqs), "--max-num-batched-tokens", str(job.max_num_batched_tokens)]
    flags += ["--quantization", job.quantization] if job.quantization else []
    starved = [*flags, "--num-gpu-blocks-override", "1024"] if cuda else []
    try:
        for phase in ("plan", "starved") if cuda else ("plan",):
            log = out / f"{job.stem}.{phase}.log"
            with tempfile.TemporaryDirectory() as folder, vllm_server.serve(
                job.model, Path(folder), device=job.device, flags=starved if phase == "starved" else flags, log=log,
                max_model_len=4096 if phase == "starved" else None
            ) as server:  # fmt: skip
                attrs |= {f"{phase}_{k}": v for k, v in server.facts.items()}
                target = Target(server.url, server.model, temperature=1.0 if "num_experts" in config else 0.0)
                vocab = config["vocab_size"]
                if phase == "plan":
                    rungs = (1, 2, 4, 8, 16, 32, 64, 128) if cuda else (1, 2, 4, 8)
                    work = suite.plan(target, vocab, job.seed, job.rates, rungs, suite.GPU_PLAN if cuda else suite.CPU_PLAN)
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
