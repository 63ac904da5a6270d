"""A measurement of a server by URL is replayed once it is told what ran there; without, the options that are missing are named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from calibrate.logs.read import measured_log
from calibrate.logs.requests import PAUSE_S
from calibrate.served.runs import read_served
from sim.errors import UsageError
from sim.study.deployment import Deployment
from sim.workload.formats import load_trace
from tests.cli import run

PACKAGED = Path(__file__).parents[2] / "scenarios" / "data" / "measured" / "h100" / "served_qwen2.5-7b.nc"
KEPT = ("schema", "suite", "seed")


@pytest.fixture(scope="module")
def by_url(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packaged run, as `measure --url` would have written it: without what only the server's machine knows."""
    with xr.open_dataset(PACKAGED, decode_timedelta=False) as opened:
        data = opened.load()
    told = {"device": "server by URL", "gpu_name": "unknown", "model": "their/name", "engine": "vllm", "engine_version": "0.23.0"}
    told |= {"kv_blocks": 27000, "block_size_tokens": 16, "max_model_len": 8192}
    data.attrs = {name: data.attrs[name] for name in KEPT} | told
    path = tmp_path_factory.mktemp("url") / "theirs.nc"
    data.to_netcdf(path)
    return path


def test_it_says_what_it_needs_to_be_told(by_url: Path) -> None:
    with pytest.raises(UsageError, match=r"measured by URL.*say --model and --gpu"):
        read_served(by_url)
    done = run("validate", "--run", str(by_url))
    assert done.code == 2
    assert "--model and --gpu" in done.stderr


def test_told_that_it_is_the_same_run(by_url: Path) -> None:
    found, packaged = read_served(by_url, given=Deployment.of("Qwen2.5-7B", "H100")), read_served(PACKAGED)
    assert (found.gpu, found.tp, found.engine) == (packaged.gpu, packaged.tp, "vllm 0.23.0")
    assert (found.limits.num_gpu_blocks, found.limits.max_model_len) == (27000, 8192)
    assert "num_gpu_blocks 27000" in found.notes[0]
    for one, other in zip(found.experiments, packaged.experiments, strict=True):
        np.testing.assert_array_equal(one.e2el_s, other.e2el_s)


def test_its_open_loops_are_one_log_to_learn_from(by_url: Path) -> None:
    found = read_served(by_url, given=Deployment.of("Qwen2.5-7B", "H100"))
    loops = [e for e in found.experiments if e.kind == "open"]
    log = measured_log(found)
    assert len(log.answered) == sum(len(e.arrival_s) for e in loops) > 100
    second = len(loops[0].arrival_s)
    assert log.experiment.arrival_s[second] >= (loops[0].arrival_s + loops[0].e2el_s).max() + PAUSE_S  # the first has ended
    np.testing.assert_array_equal(np.diff(log.experiment.arrival_s[second:])[:10], np.diff(loops[1].arrival_s)[:10])


def test_its_blocks_are_of_the_size_that_the_server_told(by_url: Path, tmp_path: Path) -> None:
    with xr.open_dataset(by_url, decode_timedelta=False) as opened:
        data = opened.load()
    data.attrs |= {"kv_blocks": 2048, "block_size_tokens": 128}
    data.to_netcdf(tmp_path / "cpu.nc")
    limits = read_served(tmp_path / "cpu.nc", given=Deployment.of("Qwen2.5-7B", "H100")).limits
    assert (limits.num_gpu_blocks, limits.block_size) == (2048, 128)


def test_it_is_a_trace_too(by_url: Path) -> None:
    trace = load_trace(by_url, "log")
    assert len(trace) > 10
    assert "that were measured" in trace.notes[0]


@pytest.mark.slow
def test_validate_replays_it(by_url: Path) -> None:
    done = run("validate", "--run", str(by_url), "--model", "Qwen2.5-7B", "--gpu", "H100", "--draws", "2")
    assert done.code in (0, 1)
    assert "theirs: Qwen2.5-7B on H100" in done.stdout
