"""`--admission skip-too-long`: a request beyond max-model-len gets an error, as from an engine, and the run goes on and says how many."""

import json

import pytest

from sim.results.run_files import read_run
from tests.cli import run

SHORT, LONG = {"prompt_tokens": 100, "output_tokens": 10}, {"prompt_tokens": 5000, "output_tokens": 10}
ON = ("--gpu", "A10", "--model", "Llama-3.1-8B", "--max-model-len", "4096")


@pytest.fixture
def trace(tmp_path):
    def written(*calls):
        path = tmp_path / "trace.jsonl"
        path.write_text("".join(json.dumps({"arrival_s": float(i)} | call) + "\n" for i, call in enumerate(calls)))
        return ("simulate", "--trace", str(path), *ON)

    return written


def test_without_it_the_first_is_refused(trace):
    result = run(*trace(SHORT, LONG, SHORT))
    assert result.code == 2
    assert "request '1' needs 5010 tokens" in result.stderr


@pytest.mark.parametrize("more", [(), ("--no-iterations",), ("--max-concurrency", "1"), ("--engine", "sglang"), ("--replicas", "2")])
def test_the_others_are_served_as_if_alone(trace, more):
    result = run(*trace(SHORT, LONG, SHORT, LONG), "--admission", "skip-too-long", "--json", *more)
    assert result.code == 0, result.stderr
    found = json.loads(result.stdout)
    assert [found[name] for name in ("num_prompts", "completed", "failed", "rejected_too_long")] == [4, 2, 2, 2]
    alone = json.loads(run(*trace(SHORT, {"arrival_s": 2.0} | SHORT), "--json", *more).stdout)
    assert found["mean_ttft_ms"] == alone["mean_ttft_ms"]


def test_the_table_and_the_file_say_so(trace, tmp_path):
    result = run(*trace(SHORT, LONG), "--admission", "skip-too-long", "--out", str(tmp_path / "run"))
    assert "turned away, too long:                 1" in result.stdout
    record, _ = read_run(tmp_path / "run" / "run.nc")
    assert record.requests["rejected"].tolist() == [0, 4]


def test_what_follows_in_its_session_is_not_sent(trace, tmp_path):
    path = tmp_path / "sessions.jsonl"
    turns = [{"arrival_s": 0.0, "turn": 0, **SHORT}, {"turn": 1, "prompt_tokens": 2**32, "output_tokens": 4}, {"turn": 2, **SHORT}]
    path.write_text("".join(json.dumps({"session_id": "a"} | turn) + "\n" for turn in turns))
    found = json.loads(run("simulate", "--trace", str(path), *ON, "--admission", "skip-too-long", "--json").stdout)
    assert (found["completed"], found["rejected_too_long"]) == (1, 1)


def test_a_run_of_nothing_else_ends(trace):
    found = json.loads(run(*trace(LONG, LONG), "--admission", "skip-too-long", "--json").stdout)
    assert (found["completed"], found["rejected_too_long"]) == (0, 2)


def test_what_is_short_enough_and_does_not_fit_in_memory_is_still_refused(trace):
    result = run(
        *trace(SHORT, {"prompt_tokens": 4000, "output_tokens": 10}), "--admission", "skip-too-long", "--engine-option", "num-gpu-blocks=100"
    )
    assert result.code == 2
    assert "more than the 1584 of the whole cache" in result.stderr
