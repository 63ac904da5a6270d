"""Experiments of the served suite by name: what matches nothing is refused before a server starts, what is done is not repeated."""

import os
import signal
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from calibrate.served.runs import read_experiments
from hw.__main__ import main
from hw.artifact import load
from hw.engines.vllm_server import RunningServer
from hw.jobs import Job, run
from hw.journal import Journal
from hw.serve.client import ServedRequest
from hw.suites import floor, served
from sim.errors import UsageError
from sim.workload.content import SystemPrompt


def job(*experiments: str) -> Job:
    return Job("served", "cpu", "tiny-25m", None, None, 0, rates=(2.0, 4.0), experiments=experiments)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Servers started; each answers at once."""
    seen: list[str] = []

    @contextmanager
    def serve(model: str, folder: Path, **how: Any) -> Any:
        seen.append(model)
        yield RunningServer("http://127.0.0.1:9", model, {"engine": "pretend"})

    async def at_once(target: Any, prompts: Any, n: int, prompt_tokens: int, output_tokens: int, first: int = 0) -> list[ServedRequest]:
        times = [0.1 + 0.01 * i for i in range(output_tokens)]
        return [ServedRequest(prompt_tokens, output_tokens, 0.0, token_s=times, finish_s=times[-1]) for _ in range(n)]

    monkeypatch.setattr(served.vllm_server, "serve", serve)

    async def loop(target: Any, prompts: Any, n: int, each: int, prompt: int, output: int, *_: int) -> list[ServedRequest]:
        times = [0.1 + 0.01 * i for i in range(output)]
        return [ServedRequest(prompt, output, 0.0, c, t, times, finish_s=times[-1]) for c in range(n) for t in range(each)]

    monkeypatch.setattr(served.load, "wave", at_once)
    monkeypatch.setattr(served.load, "closed_loop", loop)
    monkeypatch.setattr(floor, "measure", lambda *_, **__: [])
    return seen


def test_a_pattern_that_names_nothing_is_refused(tmp_path: Path, started: list[str]) -> None:
    with pytest.raises(UsageError, match=r"names none of: burst, closed 16x4, .*ladder c128 n1, .*open 2/s"):
        run(job("ladder c9*"), tmp_path)
    assert started == []


def test_only_what_is_named_runs_and_only_once(tmp_path: Path, started: list[str]) -> None:
    journal = Journal(tmp_path / "j.journal.jsonl", {})
    for _ in range(2):  # the second time nothing is left to do, and no server is started
        served.run(job("ladder c128 n[12]"), journal, {})
    assert sorted(r["key"] for r in journal.records) == ["ladder c128 n1", "ladder c128 n2"]
    assert started == ["tiny-25m"]


def test_a_label_ends_the_file_s_name(tmp_path: Path, started: list[str]) -> None:
    run(replace(job("ladder c128 n1"), label="First rung"), tmp_path)
    assert load(tmp_path / "served_tiny-25m_first-rung.nc", "served").sizes["experiment"] == 1


def test_a_shared_prefix_runs_where_it_is_named_alone_and_the_file_tells_it(tmp_path: Path, started: list[str]) -> None:
    every = {e.name for e in served.work_of("plan", 8192, job())}
    run(job("shared*"), tmp_path)
    data = load(tmp_path / "served_tiny-25m.nc", "served")
    assert data.name.values.astype(str).tolist() == ["shared 64x3"]
    assert "shared 64x3" not in every
    experiment = read_experiments(tmp_path / "served_tiny-25m.nc")[0]
    assert set(experiment.content) == {SystemPrompt("all", int(data.shared_tokens.values[0]))}
    assert len(experiment.content) == 64 * 3


def test_documents_of_each_client_come_back_by_turns_and_the_file_tells_it(tmp_path: Path, started: list[str]) -> None:
    run(job("revisit*"), tmp_path)
    experiment = read_experiments(tmp_path / "served_tiny-25m.nc")[0]
    assert experiment.session is not None
    for client in range(4):
        own = [c for c, s in zip(experiment.content, experiment.session, strict=True) if s == client]
        assert len(own) == 18
        assert own[:6] == own[6:12] == own[12:]
        assert len(set(own)) == 6
    assert len(set(experiment.content)) == 24


@pytest.mark.parametrize(("longest", "room"), [(8192, 8192), (24_000, 32768), (100_000, None)])
def test_a_server_has_room_for_the_longest_prompt_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, longest: int, room: int | None
) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(served.vllm_server, "serve", lambda model, folder, **how: asked.update(how))
    on_gpu = replace(job(), device="cuda")
    served._server(on_gpu, tmp_path, "plan", longest, [], Journal(tmp_path / "j.journal.jsonl", {}), tmp_path)
    assert asked["max_model_len"] == room


def test_the_burst_has_a_server_of_its_own_and_what_it_preempted_is_kept(
    tmp_path: Path, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def counted(target: Any) -> dict[str, float]:
        return {"preemptions": 7.0}

    monkeypatch.setattr(served, "counters", counted)
    run(job("ladder c128 n1", "burst"), tmp_path)
    data = load(tmp_path / "served_tiny-25m.nc", "served")
    assert started == ["tiny-25m", "tiny-25m"]
    assert data.name.values.astype(str).tolist() == ["ladder c128 n1", "burst"]
    assert data.attrs["starved_preemptions"] == 7.0
    assert (data.attrs["finished"], data.attrs["finished_plan"], data.attrs["finished_starved"]) == (1, 1, 1)


def test_a_model_split_over_gpus_and_quantised_is_served_so() -> None:
    flags = served._flags(replace(job(), tensor_parallel=2, quantization="fp8"))
    assert flags[4:] == ["--quantization", "fp8", "--tensor-parallel-size", "2"]


def test_further_words_reach_the_server_as_a_shell_would_split_them() -> None:
    assert served._flags(replace(job(), engine_args="--no-async-scheduling --x 'a b'"))[4:] == ["--no-async-scheduling", "--x", "a b"]


@pytest.mark.parametrize(("device", "block_tokens"), [("cuda", 16), ("cpu", 128)])
def test_the_burst_asks_for_more_than_its_server_has_and_grows_while_it_runs(device: str, block_tokens: int) -> None:
    """Blocks of 16 tokens on a GPU and of 128 on a CPU are vLLM's defaults."""
    count, prompt, output = served.BURST[device]
    blocks = served.STARVED_BLOCKS[device]
    held, grown = (-(-tokens // block_tokens) for tokens in (prompt + 1, prompt + output))
    assert count * held > blocks  # not all are admitted at once
    assert grown > held  # and what is admitted outgrows the blocks it got
    limit = served.MAX_MODEL_LEN[device, "starved"]
    assert prompt + output <= limit <= blocks * block_tokens  # the engine starts with no less than one longest request


@pytest.mark.parametrize("how", ["Ctrl-C", "termination signal"])
def test_an_interrupted_run_writes_what_it_has_and_says_unfinished(
    tmp_path: Path, started: list[str], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    answer = served.load.wave

    async def wave(target: Any, prompts: Any, n: int, *sizes: int, **more: int) -> list[ServedRequest]:
        if n == 2 and how == "Ctrl-C":
            raise KeyboardInterrupt
        if n == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return await answer(target, prompts, n, *sizes, **more)

    monkeypatch.setattr(served.load, "wave", wave)
    with pytest.raises(KeyboardInterrupt):
        run(job("ladder c128 n[128]"), tmp_path)
    data = load(tmp_path / "served_tiny-25m.nc", "served")
    assert data.attrs["finished"] == 0
    assert "ladder c128 n1" in data.name.values.astype(str).tolist()
    assert "ladder c128 n2" not in data.name.values.astype(str).tolist()
    assert (tmp_path / "served_tiny-25m.journal.jsonl").exists()
    monkeypatch.setattr(served.load, "wave", answer)
    run(job("ladder c128 n[128]"), tmp_path, resume=True)
    again = load(tmp_path / "served_tiny-25m.nc", "served")
    assert again.attrs["finished"] == 1
    assert sorted(again.name.values.astype(str)) == [f"ladder c128 n{n}" for n in (1, 2, 8)]
    assert not (tmp_path / "served_tiny-25m.journal.jsonl").exists()


def test_the_command_turns_an_interrupt_into_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(**_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hw.__main__.command.main", interrupted)
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 130
    assert capsys.readouterr().err == "hw: interrupted; what was measured is kept\n"
