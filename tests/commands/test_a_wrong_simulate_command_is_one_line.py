"""Whatever is wrong with a simulate command: one line on stderr, exit 2 (usage) or 1 (the model says no), nothing written."""

import json
import os
import tracemalloc
from pathlib import Path

import pytest

from sim.errors import UsageError
from sim.workload.formats import FORMATS, load_trace
from tests.cli import run

DATA = Path(__file__).parents[1] / "data"
AZURE = DATA / "small_azure.csv"
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROW = "2023-11-16 18:17:03.9799600,48,10\n"


def check(code, message, *args):
    got, _, err = run("simulate", *map(str, args))
    assert err.count("\n") == 1, err
    assert err.startswith("simctl: ")
    assert message in err
    assert got == code


ON_A10 = ("--model", "Llama-3.1-8B", "--gpu", "A10", "--max-model-len", "auto")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected the header"),
        ("a,b\n", "line 1: expected the header"),
        (HEADER, "holds no requests"),
        (HEADER + ROW + "2023-11-16 18:17:04,12\n", "line 3: expected 3 cells, got 2"),
        (HEADER + ROW + "2023-11-16 18:17:04,twelve,3\n", "line 3: ContextTokens must be a whole number, got 'twelve'"),
        (HEADER + ROW + "2023-11-16 18:17:04,NaN,3\n", "line 3: ContextTokens must be a whole number, got 'NaN'"),
        (HEADER + ROW + "2023-11-16 18:17:04,0,3\n", "line 3: prompt must have 1..2**32 tokens, got 0"),
        (HEADER + ROW + "2023-11-16 18:17:04,-5,3\n", "line 3: prompt must have 1..2**32 tokens, got -5"),
        (HEADER + ROW + "2023-11-16 18:17:04,5,0\n", "line 3: output must have 1..2**32 tokens, got 0"),
        (HEADER + ROW + "2023-02-30 18:17:04,5,1\n", "line 3: not a timestamp"),
        (HEADER + ROW + "yesterday,5,1\n", "line 3: not a timestamp"),
        (HEADER + ROW + "2023-11-16 18:17:03,5,1\n", "line 3: arrivals out of order"),
        (HEADER + ROW + "2023-11-16 18:17:0", "line 3: expected 3 cells, got 1"),
    ],
)
def test_malformed_csv_is_named_by_its_line(tmp_path, text, message):
    trace = tmp_path / "trace.csv"
    trace.write_text(text)
    check(2, message, "--trace", trace, "--trace-format", "azure", *ON_A10, "--out", tmp_path / "run")
    assert os.listdir(tmp_path) == ["trace.csv"]


GOOD = '{"arrival_s": 0.5, "prompt_tokens": 32, "output_tokens": 4}\n'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"arrival_s": 1.0, "prompt_tokens": 32, "outp', "line 2: not a JSON object"),
        ("[1, 2]", "line 2: expected a JSON object, got list"),
        ('{"arrival_s": NaN, "prompt_tokens": 32, "output_tokens": 4}', "line 2: not a JSON object (NaN is not a number)"),
        ('{"arrival_s": 1e999, "prompt_tokens": 32, "output_tokens": 4}', "line 2: arrival must be a finite time"),
        ('{"arrival_s": -1, "prompt_tokens": 32, "output_tokens": 4}', "line 2: arrival must be a finite time >= 0"),
        ('{"arrival_s": 0.4, "prompt_tokens": 32, "output_tokens": 4}', "line 2: arrivals out of order"),
        ('{"arrival_s": true, "prompt_tokens": 32, "output_tokens": 4}', "line 2: arrival_s must be a number, got True"),
        ('{"arrival_s": 1, "prompt_tokens": 32.5, "output_tokens": 4}', "line 2: prompt_tokens must be a whole number, got 32.5"),
        ('{"arrival_s": 1, "prompt_tokens": 32}', "line 2: output_tokens is missing"),
        ('{"prompt_tokens": 32, "output_tokens": 4}', "line 2: arrival_s is missing"),
        ('{"arrival_s": 1, "prompt_tokens": 32, "output_tokens": 4, "priorty": 1}', "line 2: unknown key 'priorty'"),
        ('{"arrival_s": 1, "prompt_tokens": 32, "output_tokens": 4, "request_id": "0"}', "line 2: duplicate request id '0'"),
        (
            '{"arrival_s": 1, "prompt_tokens": 3, "output_tokens": 4, "prompt_token_ids": [1, 2]}',
            "line 2: prompt_tokens is 3, but there are 2",
        ),
        ('{"arrival_s": 1, "output_tokens": 4, "prompt_token_ids": [1, -2]}', "line 2: prompt_token_ids must be a list of whole numbers"),
        (
            '{"arrival_s": 1, "prompt_tokens": 1000, "output_tokens": 4, "block_hashes": [1, 2], "block_size": 0}',
            "block_size must be 1..2**20",
        ),
        (
            '{"arrival_s": 1, "prompt_tokens": 1000, "output_tokens": 4, "block_hashes": [1, 2, 3], "block_size": 512}',
            "line 2: 1000 prompt tokens are 1 or 2 blocks of 512, but there are 3 hashes",
        ),
        (
            '{"arrival_s": 1, "prompt_tokens": 9, "output_tokens": 4, "session_id": "a", "turn": 1}',
            "line 2: session 'a': expected turn 0, got 1",
        ),
        ('{"prompt_tokens": 9, "output_tokens": 4, "session_id": "a"}', "line 2: a call without arrival_s must follow an earlier turn"),
        ("[" * 100_000, "line 2: not a JSON object"),
        ('{"arrival_s": ' + "9" * 5000 + ', "prompt_tokens": 9, "output_tokens": 4}', "line 2: not a JSON object"),
    ],
)
def test_malformed_json_lines_are_named(tmp_path, line, message):
    trace = tmp_path / "trace.jsonl"
    trace.write_text(GOOD + line)
    check(2, message, "--trace", trace, *ON_A10, "--out", tmp_path / "run")
    assert os.listdir(tmp_path) == ["trace.jsonl"]


def test_an_endless_line_is_not_read_whole(tmp_path):
    trace = tmp_path / "trace.jsonl"
    with trace.open("wb") as file:
        file.truncate(10 * 2**30)  # sparse: ten gigabytes of zeros, no line end
    check(2, "line 1: longer than 64 MiB", "--trace", trace, *ON_A10)


# how a file of each format may begin, so that the endless part is reached
BEGINNINGS = {"azure": HEADER.encode(), "burstgpt": b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"}


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_no_format_reads_ten_gigabytes_into_memory(tmp_path, name):
    trace = tmp_path / "trace"
    if name == "servegen":
        trace.mkdir()
        (trace / "chunk-0-dataset.json").write_text("{}")
    with (trace / "chunk-0-trace.csv" if name == "servegen" else trace).open("wb") as file:
        file.write(BEGINNINGS.get(name, b'[{"id": "' if name.startswith("sharegpt") else b'{"a": "'))
        file.truncate(10 * 2**30)
    tracemalloc.start()
    with pytest.raises(UsageError, match=r"longer than|larger than"):  # a line or an item of it, or a served log as a whole
        load_trace(trace, name)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300 * 2**20


def test_a_session_that_never_ends_is_refused_before_it_is_drawn():
    endless = ("--num-prompts", 10_000_000, "--turns", 10_000_000, "--random-input-len", 1)
    check(2, "turns grows without end", *endless, *ON_A10)


def test_a_session_that_outgrows_the_model_is_named_by_its_call(tmp_path):
    turns = [{"prompt_tokens": 100 * (i + 1), "output_tokens": 50, "session_id": "s", "turn": i} for i in range(2000)]
    turns[0]["arrival_s"] = 0.0
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(json.dumps(turn) + "\n" for turn in turns))
    check(2, "request '310' needs 31150 tokens", "--trace", trace, *ON_A10, "--max-model-len", 31140)


def test_a_think_time_without_end_is_named(tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text(
        GOOD.replace("}", ', "session_id": "s"}') + '{"think_s": 1e999, "prompt_tokens": 9, "output_tokens": 4, "session_id": "s"}'
    )
    check(2, "line 2: think time must be a finite time", "--trace", trace, *ON_A10)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("Idle", "the scheduler is stuck"),
        ("Endless", "the scheduler does not finish"),
        ("Hasty", "the scheduler finished request 0 in an iteration that gave it no token"),
    ],
)
def test_a_scheduler_of_ones_own_that_is_wrong_is_an_error(engine, message):
    path = f"tests.commands.wrong_schedulers.{engine}"
    check(1, message, "--num-prompts", 3, "--engine", path, "--random-input-len", 100, *ON_A10)


def test_text_that_is_no_text(tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_bytes(GOOD.encode() + b"\xff\xfe\n")
    check(2, "line 2: not UTF-8 text", "--trace", trace, *ON_A10)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--gpu", "A1O", "--model", "Llama-3.1-8B"), 2, "unknown GPU 'A1O'"),
        (("--gpu", "A10", "--model", "Lama-9"), 2, "unknown model 'Lama-9'"),
        (("--gpu", "A10", "--model", "Llama-3.1-70B"), 1, "does not fit on 1 x A10"),
        ((*ON_A10, "--max-num-seqs", "0"), 2, "max-num-seqs"),
        ((*ON_A10, "--max-num-seqs", "-3"), 2, "max-num-seqs"),
        ((*ON_A10, "--gpu-memory-utilization", "1.5"), 2, "not a fraction"),
        ((*ON_A10, "--gpu-memory-utilization", "nan"), 2, "not a fraction"),
        ((*ON_A10, "--workload-option", "rate-scale=0"), 2, "rate scale must be a positive number"),
        ((*ON_A10, "--workload-option", "rate-scale=nan"), 2, "rate scale must be a positive number"),
        ((*ON_A10, "--goodput", "ttft:fast"), 2, "not a service level: 'ttft:fast'"),
        ((*ON_A10, "--goodput", "ttft:1", "ttft:2"), 2, "service level ttft is given twice"),
        ((*ON_A10, "--tp", "3"), 2, "do not split"),
        ((*ON_A10, "--engine-option", "num-gpu-blocks=8", "--max-model-len", "32768"), 2, "more than the 112 of the whole cache"),
        ((*ON_A10, "--max-model-len", "100"), 2, "more than max_model_len 100"),
        ((*ON_A10, "--max-num-batched-tokens", "4", "--max-num-seqs", "8"), 2, "must be at least max_num_seqs"),
        ((*ON_A10, "--engine-option", "draft_tokens"), 2, "--engine-option needs NAME=VALUE"),
        ((*ON_A10, "--engine-option", "draft_tokens=many"), 2, "draft_tokens must be a whole number, got 'many'"),
        ((*ON_A10, "--engine-option", "async_scheduling=1"), 2, "async_scheduling must be true or false, got 1"),
        ((*ON_A10, "--engine", "sglang", "--engine-option", "schedule_policy=lru"), 2, "unknown schedule_policy 'lru'; known: fcfs, lpm"),
        ((*ON_A10, "--router-option", "dispatch_s"), 2, "--router-option needs NAME=VALUE"),
        ((*ON_A10, "--router-option", "snapshot_s=1"), 2, "round-robin has no option 'snapshot_s'"),
        ((*ON_A10, "--router", "lmetric", "--router-option", "idle-scores-zero=1"), 2, "idle_scores_zero must be true or false, got 1"),
        ((*ON_A10, "--router", "unified", "--router-option", "view=both"), 2, "view must be sent or cache"),
        ((*ON_A10, "--engine", "llamacpp", "--engine-option", "slots=3"), 2, "llamacpp has no option 'slots'"),
        ((*ON_A10, "--out", "/dev/null/run"), 2, "/dev/null: not a directory"),
        ((*ON_A10, "--out", str(AZURE)), 2, "not a directory"),
        ((*ON_A10, "--out", "/proc/run"), 2, "cannot write into /proc"),
    ],
)
def test_wrong_options(arguments, code, message):
    check(code, message, "--trace", AZURE, "--trace-format", "azure", *arguments)


def test_a_missing_trace(tmp_path):
    check(2, "does not exist", "--trace", tmp_path / "none.csv", "--trace-format", "azure", *ON_A10)


def test_an_unwritable_place_is_found_before_the_trace_is_read(tmp_path):
    trace = tmp_path / "trace.jsonl"
    trace.write_text("nonsense")
    check(2, "not a directory", "--trace", trace, *ON_A10, "--out", "/dev/null/run")
