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
from hw.serve.client import ServedRequest, Target
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

    async def complete(self, target: Target, prompt: Sequence[int], tokens: int, session: int = -1, turn: int = 0) -> ServedRequest:
        clock = asyncio.get_running_loop().time
        record = ServedRequest(len(prompt), tokens, clock(), session, turn)
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
    error = {row[2]: float(row[8].removesuffix("%")) for row in rows[:3]}
    assert error["TPOT"] < 10
    assert error["TTFT"] < 30
    # the loads of both runs are the same, and this server has no noise
    differ = [line.split() for line in out.splitlines() if line.startswith(("open 0.5/s", "open 1.5/s"))]
    assert [row[2:] for row in differ] == [["4", *["0.0%"] * 4]] * 2


def test_too_few_cells_are_known_before_anything_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import xarray as xr

    asked = []

    def few(job: Job, out: Path, log: Path | None = None) -> list[Path]:
        asked.append(job.suite)
        (path,) = measured(job, out)
        with xr.open_dataset(path) as data:
            short = data.load().isel(cell=slice(0, 5))
        short.to_netcdf(path)
        return [path]

    monkeypatch.setattr(jobs, "run_apart", few)
    code, out, err = run("loop", "--model", MODEL, "--budget", "20", "-o", str(tmp_path))
    assert (code, out, asked) == (1, "", ["engine-grid"])
    assert "too few cells to calibrate on: 5, at least 8" in err
    assert "--budget 60" in err


def test_rates_that_calibrate_refuses_are_said_to_be_so() -> None:
    from calibrate.sampling import Diagnostics
    from simctl.campaign.loop_steps import gates

    assert "calibrate" not in gates(Diagnostics(1.002, 2000.0, 0))
    assert "`simctl calibrate` refuses such rates (R-hat 1.016 > 1.01; effective sample size 108 < 400)" in gates(
        Diagnostics(1.016, 108.0, 0)
    )


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="no engine here: make loop installs one")
def test_the_real_engine_is_measured_and_predicted(tmp_path: Path) -> None:
    code, out, err = run("loop", "--budget", "5", "-o", str(tmp_path))
    assert code == 0, err
    assert sum(line.startswith("open 1/s") for line in out.splitlines()) == 4
