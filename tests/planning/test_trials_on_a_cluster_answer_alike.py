"""A plan whose trials run on a Dask cluster has the answer of one machine, to the last digit."""

from __future__ import annotations

import json

import pytest

from sim.planning import trials
from tests.cli import run

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.filterwarnings("ignore")
ASKED = ("plan", "--gpu", "L4,A10", "--model", "Llama-3.1-8B", "--request-rate", "3", "--num-prompts", "180", "--random-output-len", "32",
         "--slo", "ttft:p99<2s tpot:mean<60ms", "--for", "60s", "--within", "10m", "--quick", "--json")  # fmt: skip


@pytest.fixture(scope="module")
def scheduler():
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster:
        yield cluster.scheduler_address


def test_the_answer_is_that_of_one_machine(scheduler, monkeypatch) -> None:
    alone = run(*ASKED, "--workers", "1")
    assert alone.code == 0, alone.stderr
    monkeypatch.setattr(trials, "LAZY_S", 0.0)  # all trials but the first
    here: list[int] = []
    one = trials.Here.one
    monkeypatch.setattr(trials.Here, "one", lambda self, *asked: here.append(1) or one(self, *asked))
    spread = run(*ASKED, "--workers", scheduler)
    assert json.loads(spread.stdout) == json.loads(alone.stdout)
    assert len(here) == 1


def test_a_scheduler_that_is_not_there_is_one_line(monkeypatch) -> None:
    monkeypatch.setattr(trials, "LAZY_S", 0.0)
    monkeypatch.setattr("simctl.from_options.dask_workers.CONNECT_S", 0.5)
    done = run(*ASKED, "--workers", "tcp://127.0.0.1:9")
    assert (done.code, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "no scheduler answers" in done.stderr


@pytest.mark.parametrize("workers", ["0", "257", "two", "http://a:1"])
def test_other_workers_are_one_line(workers) -> None:
    done = run(*ASKED, "--workers", workers)
    assert done.code == 2
    assert "neither 1 to 256 processes nor a Dask scheduler" in " ".join(done.stderr.split())
