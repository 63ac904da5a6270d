"""The suite host times the interpreter, memory and wake-ups anywhere, and launches where there is a GPU; two hosts measured so differ."""

from pathlib import Path

import pytest

from hw.artifact import load
from hw.jobs import Job, run
from hw.suites import host

VALIDATION = Path(__file__).parents[2] / "scenarios/data/measured/validation"


def test_a_processor_without_a_gpu_fills_the_file_with_seconds(tmp_path: Path) -> None:
    (path,) = run(Job("host", "cpu"), tmp_path)
    found = load(path, "host")
    told = dict(zip(found.what.values.tolist(), found.value_median.values.tolist(), strict=True))
    assert set(told) == {"interpreter_loop", "json_round_trip", "memory_copy", "process_round_trip"}
    assert 1e-9 < told["interpreter_loop"] < 1e-5
    assert told["process_round_trip"] > told["interpreter_loop"]
    assert found.attrs["finished"] == 1
    assert found.attrs["cpu_cores"] >= 1


def test_a_burst_is_timed_per_thing_and_its_first_repeat_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    now, first = [0.0], [5.0]

    def work() -> None:
        now[0] += first.pop() if first else 0.25

    monkeypatch.setattr(host.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(host, "REPEATS", 4)
    assert host._each(work, 50) == [0.005] * 4


@pytest.mark.parametrize("what", ["launch_eager_done", "layer_compiled_done", "graph_kernel_done", "number_back", "dispatch"])
def test_hosts_with_gpus_told_their_launches(what: str) -> None:
    for name in ("h100_host", "h100_host_1"):
        found = load(VALIDATION / f"{name}.nc", "host")
        told = dict(zip(found.what.values.tolist(), found.value_median.values.tolist(), strict=True))
        assert 0 < told[what] < 1e-2
        assert told["graph_kernel_done"] < told["launch_eager_done"]
