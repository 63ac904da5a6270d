"""A server told so writes down what each iteration carried and when; the measurement file keeps it by experiment."""

import importlib
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray as xr

from hw.__main__ import main
from hw.artifact import SCHEMA, load, write
from hw.engines import vllm_server
from hw.jobs import Job
from hw.journal import Journal
from hw.serve.recording import CHUNK, ITERATION, LOG_ENVIRONMENT, SCHEDULER, by_experiment, line, recording, variables
from hw.suites import served


def decision(new: dict[str, tuple[int, int]], running: dict[str, tuple[int, int]]) -> Any:
    """A SchedulerOutput, as far as it is read: (tokens to compute, tokens cached) of new and of running requests."""
    return SimpleNamespace(
        num_scheduled_tokens={name: tokens for name, (tokens, _) in (new | running).items()},
        scheduled_new_reqs=[SimpleNamespace(req_id=name, num_computed_tokens=cached) for name, (_, cached) in new.items()],
        scheduled_cached_reqs=SimpleNamespace(req_ids=list(running), num_computed_tokens=[cached for _, cached in running.values()]),
    )


class Scheduler:
    """Decides what it is told to, and has requests as long as there is something left to decide."""

    def __init__(self, decisions: list[Any]) -> None:
        self.left = list(decisions)

    def schedule(self) -> Any:
        return self.left.pop(0)

    def update_from_output(self, decision: Any, output: str) -> str:
        return f"{output} of {len(decision.num_scheduled_tokens)}"

    def has_requests(self) -> bool:
        return bool(self.left)

    def shutdown(self) -> None:
        self.left.clear()


def test_it_decides_as_before_and_leaves_a_line_for_each_iteration_in_order_of_collection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv(LOG_ENVIRONMENT, str(log))
    first, nothing, second = decision({"a": (300, 0), "b": (17, 64)}, {}), decision({}, {}), decision({}, {"a": (1, 300), "b": (1, 81)})
    scheduler = recording(Scheduler)([first, nothing, second])
    assert [scheduler.schedule() for _ in range(2)] == [first, nothing]
    assert scheduler.update_from_output(first, "tokens") == "tokens of 2"
    assert scheduler.update_from_output(nothing, "none") == "none of 0"
    assert scheduler.update_from_output(scheduler.schedule(), "tokens") == "tokens of 2"
    scheduler.shutdown()
    assert not scheduler.has_requests()
    lines = [text.split(",") for text in log.read_text().splitlines()]
    assert [cells[3:] for cells in lines] == [["0", "0", "0.000", "300@0 17@64"], ["2", "381", "109.500", ""]]
    for decided, scheduled, collected in ([float(t) for t in cells[:3]] for cells in lines):
        assert decided <= scheduled <= collected


def test_iterations_belong_to_the_experiment_that_had_begun_and_half_a_line_to_none(tmp_path: Path) -> None:
    log = [line(at, at + 0.001, at + 0.01, [(1, 9), (5, 0)]) for at in (0.5, 10.2, 10.4, 30.0)] + ["31.0,31.1"]
    rows = by_experiment(log, [30.0, 10.0])
    assert [row[0] for row in rows] == [1, 1, 0]
    assert [row[1] for row in rows] == [0.2, 0.4, 0.0]
    write(xr.Dataset(variables(rows), attrs={"schema": SCHEMA}), tmp_path / "served_x.nc")
    data = load(tmp_path / "served_x.nc")
    assert set(data.variables) == {*ITERATION, *CHUNK}
    assert data.iteration_experiment_index.values.tolist() == [1, 1, 0]
    assert data.decode_seqs.values.tolist() == [1, 1, 1]
    chunks = [data[name].values.tolist() for name in CHUNK]
    assert chunks == [[0, 1, 2], [5, 5, 5], [0, 0, 0]]
    np.testing.assert_allclose(data.collected_s - data.decided_s, 0.01, rtol=1e-4)


def test_the_name_that_the_engine_is_given_leads_to_its_own_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("vllm", "vllm.v1", "vllm.v1.core", "vllm.v1.core.sched"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    engine = ModuleType("vllm.v1.core.sched.async_scheduler")
    engine.AsyncScheduler = Scheduler  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, engine.__name__, engine)
    module, _, name = SCHEDULER.rpartition(".")
    assert issubclass(getattr(importlib.import_module(module), name), Scheduler)


def test_the_server_is_started_with_the_scheduler_that_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[list[str], dict[str, str]]] = []

    @contextmanager
    def running(command: list[str], url: str, log: Path, env: dict[str, str], start_timeout_s: float) -> Any:
        log.write_text("")
        calls.append((command, env))
        yield 1.0

    monkeypatch.setattr(vllm_server, "running", running)
    monkeypatch.setattr(vllm_server.importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(vllm_server, "write_model", lambda model, folder, **_: folder)
    for iterations in (None, tmp_path / "log"):
        with vllm_server.serve("tiny-25m", tmp_path, device="cuda", iterations=iterations, log=tmp_path / "server.log"):
            pass
    (plain, plain_env), (recorded, recorded_env) = calls
    flag = recorded.index("--scheduler-cls")
    assert recorded[flag + 1] == SCHEDULER
    assert recorded_env[LOG_ENVIRONMENT] == str(tmp_path / "log")
    assert "--scheduler-cls" not in plain
    assert LOG_ENVIRONMENT not in plain_env


def test_what_an_earlier_run_left_is_not_taken_for_this_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job("served", "cpu", "tiny-25m", iterations=True, experiments=("burst",))
    log = tmp_path / f"{job.stem}.iterations.log"
    log.write_text(line(1.0, 1.0, 1.1, [(1, 5)]))

    @contextmanager
    def serve(*_: Any, **how: Any) -> Any:
        assert how["iterations"] == log
        assert not log.exists()
        raise RuntimeError("far enough")
        yield

    monkeypatch.setattr(served.vllm_server, "serve", serve)
    with pytest.raises(RuntimeError, match="far enough"):
        served.run(job, Journal(tmp_path / f"{job.stem}.journal.jsonl", {}), {})


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (["--suite", "engine-grid", "--model", "tiny-25m"], "are for the suite served"),
        (["--suite", "served", "--model", "x", "--url", "http://127.0.0.1:9"], "server of our own"),
    ],
)
def test_where_nothing_could_write_them_down_it_is_refused(
    more: list[str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["hw", "--hw", "cpu", "-o", str(tmp_path), "--iterations", *more])
    with pytest.raises(SystemExit) as refused:
        main()
    assert refused.value.code == 2
    assert named in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
