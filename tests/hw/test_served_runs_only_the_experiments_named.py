"""Experiments of the served suite by name: what matches nothing is refused before a server starts, what is done is not repeated."""

from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hw.engines.server_process import Server
from hw.jobs import Job
from hw.journal import Journal
from hw.serve.client import Served
from hw.suites import served, served_job
from sim.errors import UsageError


def job(*experiments: str) -> Job:
    return Job("served", "cpu", "tiny-25m", None, None, 0, rates=(2.0, 4.0), experiments=experiments)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Servers started; each answers at once."""
    seen: list[str] = []

    @contextmanager
    def serve(model: str, folder: Path, **how: Any) -> Any:
        seen.append(model)
        yield Server("http://127.0.0.1:9", model, {"engine": "pretend"})

    async def at_once(target: Any, prompts: Any, n: int, prompt_tokens: int, output_tokens: int, first: int = 0) -> list[Served]:
        times = [0.1 + 0.01 * i for i in range(output_tokens)]
        return [Served(prompt_tokens, output_tokens, 0.0, token_s=times, finish_s=times[-1]) for _ in range(n)]

    monkeypatch.setattr(served_job.vllm_server, "serve", serve)
    monkeypatch.setattr(served.load, "wave", at_once)
    monkeypatch.setattr(served_job.floor, "measure", lambda *_, **__: [])
    return seen


def test_a_pattern_that_names_nothing_is_refused(tmp_path: Path, started: list[str]) -> None:
    with pytest.raises(UsageError, match=r"names none of: closed 16x4, ladder c128 n1, .*open 2/s"):
        served_job.run(job("ladder c9*"), tmp_path, Journal(tmp_path / "j", {}), {})
    assert started == []


def test_only_what_is_named_runs_and_only_once(tmp_path: Path, started: list[str]) -> None:
    journal = Journal(tmp_path / "j", {})
    served_job.run(job("ladder c128 n[12]"), tmp_path, journal, {"gpu_name": "none"})
    assert sorted(r["key"] for r in journal.records) == ["ladder c128 n1", "ladder c128 n2"]
    assert started == ["tiny-25m"]
    again = Journal(tmp_path / "j", {})
    again.records = journal.records
    served_job.run(job("ladder c128 n[12]"), tmp_path, again, {"gpu_name": "none"})
    assert started == ["tiny-25m"]
