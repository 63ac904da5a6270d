"""A plan whose trials run on a Dask cluster has the answer of one machine, to the last digit."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from sim.errors import SimctlError
from sim.planning import trials
from simctl.from_options.dask_workers import dask_pool
from tests.cli import run

dask = pytest.importorskip("dask")
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


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate")
def test_a_scheduler_behind_tls_is_reached_by_dasks_certificates(tmp_path) -> None:
    made = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key", "-out", "cert", "-days", "1", "-subj", "/CN=a")
    subprocess.run(made, cwd=tmp_path, check=True, capture_output=True)
    cert, key = f"{tmp_path}/cert", f"{tmp_path}/key"
    files = {f"tls_{who}_{what}": file for who in ("scheduler", "worker", "client") for what, file in (("cert", cert), ("key", key))}
    own = distributed.Security(tls_ca_file=cert, require_encryption=True, **files)
    given = {"ca-file": cert, "client.cert": cert, "client.key": key}
    local = {"n_workers": 1, "processes": False, "dashboard_address": ":0", "silence_logs": 50}
    with distributed.LocalCluster(**local, protocol="tls://", security=own) as cluster:
        address = cluster.scheduler_address
        with pytest.raises(SimctlError, match="names no certificates"), dask_pool(address, 0):
            pass
        with dask.config.set({f"distributed.comm.tls.{name}": value for name, value in given.items()}), dask_pool(address, 0) as pool:
            assert pool.executor.submit(sum, [1, 2]).result(60) == 3


@pytest.mark.parametrize("workers", ["0", "257", "two", "http://a:1"])
def test_other_workers_are_one_line(workers) -> None:
    done = run(*ASKED, "--workers", workers)
    assert done.code == 2
    assert "neither 1 to 256 processes nor a Dask scheduler" in " ".join(done.stderr.split())
