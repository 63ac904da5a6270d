"""What users add is one entry each, and a run knows it from there on; a rate is named in three files."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sim import Deployment, Limits, Workload, get_gpu, get_model, simulate
from sim.cluster.router import ROUTERS, LoadRouter
from sim.cost.rates import UNITS
from sim.engine.config import EngineConfig
from sim.engine.registry import ENGINES, EngineKind
from sim.engine.schedulers import VllmScheduler
from sim.results import metrics, tables
from sim.results.metrics import FIGURES, Figure
from tests.cli import run

ROOT = Path(__file__).parents[2]
RUN = ("simulate", "--model", "Llama-3.1-8B", "--num-prompts", "20", "--request-rate", "20", "--random-output-len", "16", "--draws", "0")
GPU = "{name: Mine, memory_bytes: 80e9, memory_bandwidth: 2.0e12, flops: {bf16: 500e12}, host_link_bandwidth: 63e9}"


class OneAtATime(VllmScheduler):
    """An engine that serves one request at a time, whatever its limits."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(replace(config, max_num_seqs=1))


def served(engine: str = "vllm", **how):
    deployment = Deployment(get_model("Llama-3.1-8B"), get_gpu("H100"), limits=Limits(engine=engine), **how)
    return simulate(deployment, Workload.drawn(20, request_rate=20.0, output_len=16), draws=0)


def most_running(one) -> int:
    return int(one.summary["max_running"])


def test_an_engine_is_one_entry_or_a_dotted_path(monkeypatch):
    monkeypatch.setitem(ENGINES, "one-at-a-time", EngineKind(OneAtATime, memory_share=0.9, batch_limits=(4, 2048)))
    by_name, by_path = served("one-at-a-time"), served(f"{__name__}.OneAtATime")
    assert most_running(by_name) == most_running(by_path) == 1 < most_running(served())
    assert by_name.config.max_num_seqs == 4
    assert run(*RUN, "--gpu", "H100", "--engine", "one-at-a-time").code == 0


def test_a_gpu_is_one_yaml_file(tmp_path):
    (tmp_path / "mine.yaml").write_text(GPU)
    result = run(*RUN, "--gpu", str(tmp_path / "mine.yaml"))
    assert result.code == 0, result.stderr
    assert "1 x Mine" in result.stdout


def test_a_router_is_one_entry(monkeypatch):
    def last(loads, known, new, draws):
        return len(loads) - 1

    monkeypatch.setitem(ROUTERS, "last", lambda replicas, block_size, capacity: LoadRouter(last, replicas, block_size, capacity))
    record = served(replicas=3, router="last").record
    assert set(np.asarray(record.requests["replica"])) == {2}


def test_a_metric_is_one_entry(monkeypatch):
    longest = Figure("longest_answer", lambda view: int(view.requests["generated_tokens"].max()), "Longest answer (tokens):")
    for module in (metrics, tables):
        monkeypatch.setattr(module, "FIGURES", (*FIGURES, longest))
    one = served()
    assert one.summary["longest_answer"] == one.to_dict()["longest_answer"] == 16
    result = run(*RUN, "--gpu", "H100", "--goal", "longest_answer<=16")
    assert re.search(r"Longest answer \(tokens\): +16\b", result.stdout)


@pytest.mark.parametrize("rate", UNITS)
def test_a_rate_is_declared_given_a_prior_and_used_in_three_files(rate):
    """Only what singles a rate out names it elsewhere, as remembered stages and ablated groups do: nothing has to."""
    sources = [path for package in ("sim", "calibrate", "hw", "simctl") for path in (ROOT / package).rglob("*.py")]
    naming = {str(path.relative_to(ROOT)) for path in sources if re.search(rf"\b{rate}\b", path.read_text())}
    needed = {"sim/cost/rates.py", "sim/cost/step_time.py", "sim/rates/priors.py"}
    assert naming >= needed
    assert rate != "beta_expert" or naming == needed
