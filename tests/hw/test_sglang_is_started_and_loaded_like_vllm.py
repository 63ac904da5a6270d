"""A server of SGLang's under the served suite: started in its own words, asked who it is, loaded, stopped."""

import asyncio
import json
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hw.__main__ import main
from hw.engines import sglang_server
from hw.engines.shapes import write_model
from hw.engines.vllm_server import RunningServer
from hw.jobs import Job
from hw.journal import Journal
from hw.serve.client import Target, complete
from hw.suites import served
from sim.errors import UsageError

INFO = {"tp_size": 1, "version": "0.5.15", "max_total_num_tokens": 420_000, "max_running_requests": 256}
PRETEND = """
import asyncio, json, sys
from pathlib import Path
from tests.hw.toy_server import ToyServer

async def main():
    words = sys.argv[1:]
    config = json.loads((Path(words[words.index("--model-path") + 1]) / "config.json").read_text())
    answers = {"/health": "up", "/get_server_info": json.dumps(%r), "/words": json.dumps(words), "/config": json.dumps(config)}
    toy = ToyServer(lambda prompt: 0.0, lambda streams: 0.0, tell="usage", answers=answers)
    server = await asyncio.start_server(toy.handle, "127.0.0.1", int(words[words.index("--port") + 1]))
    await server.serve_forever()

asyncio.run(main())
"""


@pytest.fixture
def pretended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `sglang` whose server answers at once."""
    package = tmp_path / "site" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text(PRETEND % INFO)
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setattr(sglang_server, "write_model", lambda model, folder, **_: write_model(model, folder))  # no library of tokenizers
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(package.parent), str(Path.cwd()), *sys.path]))
    return tmp_path


def test_it_answers_with_its_name_and_the_cache_it_got_and_is_gone_afterwards(pretended: Path) -> None:
    flags = ["--max-num-seqs", "64", "--max-num-batched-tokens", "2048", "--tensor-parallel-size", "2", "--max-total-tokens", "16384"]
    with sglang_server.serve("tiny-25m", pretended, flags=flags, max_model_len=512, log=pretended / "log") as server:
        assert {k: server.facts[k] for k in ("engine", "engine_version", "kv_tokens", "max_num_seqs", "path")} == {
            "engine": "sglang", "engine_version": "0.5.15", "kv_tokens": 420_000, "max_num_seqs": 256, "path": "served",
        }  # fmt: skip
        answer = asyncio.run(complete(Target(server.url, server.model), [5, 6, 7], 4))
        assert answer.ok
        assert len(answer.token_s) == 4
        words = str(server.facts["server_flags"]).split()
        assert words[words.index("--chunked-prefill-size") + 1] == "2048"
        assert words[words.index("--max-running-requests") + 1] == "64"
        assert words[words.index("--tp-size") + 1] == "2"
        assert words[words.index("--context-length") + 1] == "512"
        assert words[-2:] == ["--max-total-tokens", "16384"]
        assert json.loads((Path(words[words.index("--model-path") + 1]) / "config.json").read_text())["hidden_size"] > 0
    again = asyncio.run(complete(Target(server.url, server.model), [5], 1))
    assert not again.ok


def test_without_sglang_it_says_where_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang_server.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="air-gapped"), sglang_server.serve("tiny-25m", tmp_path, log=tmp_path / "log"):
        pass


def test_the_suite_starts_it_and_a_second_one_with_little_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []

    @contextmanager
    def serve(model: str, folder: Path, **how: Any) -> Any:
        calls.append(how["flags"])
        yield RunningServer("http://127.0.0.1:9", model, {"engine": "sglang", "engine_version": "0.5.15"})

    monkeypatch.setattr(served.sglang_server, "serve", serve)
    monkeypatch.setattr(served, "measure", lambda *_, **__: {"finished": 1})
    job, attrs = Job("served", "cuda", "tiny-25m", engine="sglang"), {}
    served.run(job, Journal(tmp_path / f"{job.stem}.journal.jsonl", {}), attrs)
    assert job.stem == "served_tiny-25m_sglang"
    assert attrs["plan_engine"] == "sglang"
    assert [call[4:] for call in calls] == [[], ["--max-total-tokens", "16384"]]


@pytest.mark.parametrize(
    "more", [["--suite", "engine-grid"], ["--suite", "served", "--iterations"], ["--suite", "served", "--replicas", "2"]]
)
def test_what_only_vllm_does_is_refused(
    more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["hw", "--hw", "cpu", "-o", str(tmp_path), "--engine", "sglang", "--model", "tiny-25m", *more])
    with pytest.raises(SystemExit) as refused:
        main()
    assert refused.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
