"""`simctl loop` from measuring to the table of errors, against a server of known times; against the real engine where there is one."""

import asyncio
import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from hw import jobs
from hw.artifact import SCHEMA, write
from hw.engines.shapes import SHAPES
from hw.jobs import Job
from hw.serve import load_patterns as load
from hw.serve.client import Served, Target
from hw.suites import served
from hw.suites.served_plan import CPU_PLAN, plan
from simctl.commands import loop_command as loop
from tests.calibrate.grids import write_grid
from tests.cli import run
from tests.hw.virtual_time import run_virtual

MODEL = "qwen2.5-7b"
FACTS = {"floor_copy_bytes_per_s": 2e12, "floor_read_bytes_per_s": 2.5e12, "floor_matmul_fp32_flop_per_s": 4e14}
FACTS |= {"kv_blocks": 4000, "block_size_tokens": 16}


@dataclass
class KnownServer:
    """Streams take `first_s` to the first token and `gap_s` for each after it, however many there are."""

    first_s: float = 0.02
    gap_s: float = 0.008

    async def complete(self, target: Target, prompt: Sequence[int], tokens: int, session: int = -1, turn: int = 0) -> Served:
        clock = asyncio.get_running_loop().time
        record = Served(len(prompt), tokens, clock(), session, turn)
        for i in range(tokens):
            await asyncio.sleep(self.gap_s if i else self.first_s)
            record.token_s.append(clock())
        record.finish_s = clock()
        return record


def measured(job: Job, out: Path, log: Path | None = None) -> list[Path]:
    """Files as the suites write them: a grid of the formula's own times, a served run of the whole plan on a virtual clock."""
    out.mkdir(parents=True)
    if job.suite == "engine-grid":
        return [write_grid(out / "engine-grid.nc", np.random.default_rng(0), **FACTS)]
    experiments = plan(1000, job.seed, job.rates, CPU_PLAN)
    chosen = served.chosen_of({e.name for e in experiments}, job)
    records = [served.summary(e, run_virtual(e.send(Target("http://none", "")))) for e in experiments if e.name in chosen]
    attrs = {
        "schema": SCHEMA,
        "suite": "served",
        "gpu_name": "none",
        "model": MODEL,
        "model_config": json.dumps(SHAPES[MODEL]),
        "weight_dtype": "bfloat16",
    }
    attrs |= {"plan_server_flags": f"--max-num-seqs {job.max_num_seqs} --max-num-batched-tokens {job.max_num_batched_tokens}"}
    return [write(served.dataset(records, attrs), out / "served.nc")]


def test_a_load_never_seen_is_predicted_measured_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "complete", KnownServer().complete)
    monkeypatch.setattr(jobs, "run_apart", measured)
    monkeypatch.setattr(loop, "SAMPLED", {"draws": 100, "tune": 150, "chains": 2, "cores": 2, "target_accept": 0.8})
    code, out, err = run("loop", "--model", MODEL, "-o", str(tmp_path))
    assert code == 0, err
    rows = [line.split() for line in out.splitlines() if line.startswith("open 1/s")]
    assert [row[2] for row in rows] == ["TTFT", "TPOT", "E2EL", "p99"]
    error = {row[2]: float(row[4].removesuffix("%")) for row in rows[:3]}
    assert error["TPOT"] < 10
    assert error["TTFT"] < 30
    # the loads of both runs are the same, and this server has no noise
    differ = [line.split() for line in out.splitlines() if line.startswith(("open 0.5/s", "open 1.5/s"))]
    assert [row[2:] for row in differ] == [["4", *["0.0%"] * 4]] * 2


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="no engine here: make loop installs one")
def test_the_real_engine_is_measured_and_predicted(tmp_path: Path) -> None:
    code, out, err = run("loop", "--budget", "5", "-o", str(tmp_path))
    assert code == 0, err
    assert sum(line.startswith("open 1/s") for line in out.splitlines()) == 4
