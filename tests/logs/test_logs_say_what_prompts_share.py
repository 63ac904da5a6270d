"""A per-request log of any engine: sessions and block ids bring prefixes back in the replay, and what the server was is said by options."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from calibrate.logs.read import BLOCK, read_log
from calibrate.measured_files import engine_grids, of_engine
from calibrate.served.replay import replay
from sim.errors import UsageError
from sim.workload.content import Grown, SystemPrompt
from sim.workload.jsonl import load_jsonl
from tests.cli import run
from tests.served.made_runs import HOST, IN_PROCESS, RUN, as_served, open_loop

COLUMNS = ["arrival_s", "prompt_tokens", "output_tokens", "first_token_s", "finish_s", "cached_tokens"]
ARGUMENTS = ["--model", "Qwen2.5-7B", "--gpu", "H100", "--max-num-seqs", "256", "--max-num-batched-tokens", "8192", "--draws", "2"]


def written(path, experiment, extra, values, cached):
    with path.open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow([*COLUMNS, extra])
        e = experiment
        for i in range(len(e.arrival_s)):
            start = 50.0 + e.arrival_s[i]
            lengths = int(e.prompt_tokens[i]), int(e.output_tokens[i])
            writer.writerow([start, *lengths, start + e.ttft_s[i], start + e.e2el_s[i], int(cached[i]), values[i]])
    return path


def read(path, block=BLOCK):
    return read_log(path, block_tokens=block)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """Prompts of 2,560 tokens: four blocks of one of five documents, then one of their own; as the simulator serves them."""
    plain = open_loop("shared", 4.0, 60)
    plain = replace(plain, prompt_tokens=np.full(60, 2560), output_tokens=np.full(60, 64))
    ids = [" ".join([*(f"doc{i % 5}.{b}" for b in range(4)), f"own{i}"]) for i in range(60)]
    path = tmp_path_factory.mktemp("shared") / "log.csv"
    blank = read(written(path, plain, "prefix_ids", ids, np.zeros(60))).experiment
    seen = replay(RUN, blank, as_served(IN_PROCESS), HOST)
    served = replace(plain, ttft_s=seen.ttft_s, e2el_s=seen.e2el_s)
    return written(path, served, "prefix_ids", ids, seen.cached_tokens), seen.cached_tokens


def test_equal_block_ids_are_cached_where_one_came_before(shared):
    _, cached = shared
    assert (cached[:5] == 0).all()
    assert set(cached[5:]) == {2048}


def test_a_log_with_block_ids_replays_its_cached_tokens(shared):
    path, _ = shared
    (report,) = json.loads(run("validate", "--run", str(path), *ARGUMENTS, "--json").stdout)
    assert report["cached_tokens"] == [{"experiment": "log.csv (rest)", "equal": 20, "of": 20}]
    assert all(note.startswith("fitted to requests") for note in report["notes"])


def test_without_ids_cached_tokens_are_a_note_and_not_silence(shared, tmp_path):
    path, _ = shared
    with path.open(newline="") as handle:
        rows = [row[:-1] for row in csv.reader(handle)]
    bare = tmp_path / "bare.csv"
    with bare.open("w", newline="") as handle:
        csv.writer(handle).writerows(rows)
    assert "no session, system_prompt or prefix_ids" in read(bare).notes[0]


def test_a_smaller_block_shares_less_of_the_prompt(shared):
    path, _ = shared
    few = read(path, 256).experiment
    cached = replay(RUN, few, as_served(IN_PROCESS), HOST).cached_tokens
    assert set(cached[5:]) == {1024}


def test_sessions_repeat_what_was_said_and_wait_for_their_answer(tmp_path):
    plain = open_loop("sessions", 1.0, 12)
    # three clients, four turns each, a second after the last answer
    turn = np.arange(12) // 3
    arrival = 0.1 * (np.arange(12) % 3) + turn * 3.0
    e = replace(plain, arrival_s=arrival, prompt_tokens=400 + 500 * turn, output_tokens=np.full(12, 64))
    path = written(tmp_path / "s.csv", e, "session", [f"client {i % 3}" for i in range(12)], np.zeros(12))
    found = read(path).experiment
    trace = found.trace()
    assert np.isnan(trace.arrival_s).sum() == 9
    cached = replay(RUN, found, as_served(IN_PROCESS), HOST).cached_tokens
    assert (cached[:3] == 0).all()
    # all that was said so far but the last token, whose KV nobody computed, in whole blocks of 16
    assert (cached[3:6] == (400 + 64 - 1) // 16 * 16).all()


def test_sessions_share_a_system_prompt_and_repeat_their_own_answers(tmp_path):
    plain, turn = open_loop("sessions", 1.0, 12), np.arange(12) // 3
    e = replace(plain, arrival_s=0.1 * (np.arange(12) % 3) + turn * 3.0, prompt_tokens=400 + 500 * turn, output_tokens=np.full(12, 64))
    path = written(tmp_path / "s.csv", e, "session", [f"client {i % 3}" for i in range(12)], np.zeros(12))
    header, *rows = path.read_text().splitlines()
    path.write_text("\n".join([f"{header},system_prompt,system_tokens", *(f"{row},agent,256" for row in rows)]) + "\n")
    cached = replay(RUN, read(path).experiment, as_served(IN_PROCESS), HOST).cached_tokens
    assert cached[:3].tolist() == [0, 256, 256]  # the first computes it for the others
    assert (cached[3:6] == (400 + 64 - 1) // 16 * 16).all()
    traced = tmp_path / "t.jsonl"
    lines = [
        {
            "session_id": f"{i % 3}",
            "prompt_tokens": int(e.prompt_tokens[i]),
            "output_tokens": 64,
            "system_prompt": "agent",
            "system_tokens": 256,
        }
        | ({"arrival_s": float(e.arrival_s[i])} if i < 3 else {"think_s": 1.0})
        for i in range(12)
    ]
    traced.write_text("\n".join(map(json.dumps, lines)) + "\n")
    contents = load_jsonl(traced).contents
    assert contents[:3] == [SystemPrompt("agent", 256)] * 3
    assert contents[3:6] == [Grown(464)] * 3


def test_a_first_request_that_was_cached_is_a_note_where_no_system_prompt_tells_why(tmp_path):
    e = replace(open_loop("sessions", 1.0, 12), arrival_s=3.0 * np.arange(12))
    path = written(tmp_path / "s.csv", e, "session", [f"s{i % 6}" for i in range(12)], np.full(12, 128))
    assert "no system_prompt says what they share" in read(path).notes[0]


def test_a_log_is_a_trace_to_simulate(shared, tmp_path):
    path, cached = shared
    said = run(
        "simulate", "--gpu", "H100", "--model", "Qwen2.5-7B", "--trace", str(path), "--trace-format", "log", "--json", "--draws", "0"
    )
    assert said.code == 0, said.stderr
    hits = json.loads(said.stdout)
    assert hits["num_prompts"] == len(cached)
    assert hits["prefix_cache_hit_rate"] == pytest.approx(cached.sum() / (2560 * len(cached)), abs=0.02)


@pytest.mark.parametrize(
    ("extra", "values", "says"),
    [
        ("prefix_ids", lambda i: " ".join("abcdefgh"), "line 2: 8 prefix_ids of 512 tokens are more than a prompt of 512 has"),
        ("session", lambda i: "one", "line 3: session 'one' sends this before its last answer came back"),
    ],
)
def test_what_cannot_be_is_named_by_line(tmp_path, extra, values, says):
    e = open_loop("x", 20.0, 12)
    path = written(tmp_path / "x.csv", e, extra, [values(i) for i in range(12)], np.zeros(12))
    code, _, err = run("validate", "--run", str(path), *ARGUMENTS)
    assert (code, err.count("\n")) == (2, 1)
    assert says in err


def test_both_columns_are_refused(shared, tmp_path):
    path, _ = shared
    text = path.read_text().splitlines()
    both = tmp_path / "both.csv"
    both.write_text("\n".join([f"{text[0]},session", *(f"{line},a" for line in text[1:])]) + "\n")
    assert "both say what prompts share" in run("validate", "--run", str(both), *ARGUMENTS).stderr


def test_parts_of_a_log_keep_what_their_own_prompts_share(shared):
    whole = read(shared[0]).experiment
    first, rest = whole.part(slice(0, 6), "first"), whole.part(slice(6, None), "rest")
    assert first.content + rest.content == whole.content
    assert [part.trace().contents[0].hashes[-1] for part in (first, rest)] == ["own0", "own6"]


def test_the_server_is_as_the_options_say(shared):
    path, _ = shared
    options = (*ARGUMENTS, "--json")
    plain, cold, other = (
        json.loads(run("validate", "--run", str(path), *options, *more).stdout)[0]
        for more in ([], ["--log-option", "enable-prefix-caching=false"], ["--log-option", "gpu-memory-utilization=0.5"])
    )
    assert cold["cached_tokens"][0]["equal"] == 0
    assert other["num_gpu_blocks"] < 0.6 * plain["num_gpu_blocks"]
    sglang = run("validate", "--run", str(path), *options, "--engine", "sglang")
    assert json.loads(sglang.stdout)[0]["engine"] == "per-request log of sglang"
    assert run("validate", "--run", str(path), *options, "--engine", "nope").code == 2


def test_a_calibration_reads_the_same_columns(shared, tmp_path):
    path, _ = shared
    log = read_log(path)
    assert [c.hashes[:1] for c in log.experiment.content[:2]] == [("doc0.0",), ("doc1.0",)]
    assert read_log(path, block_tokens=256).experiment.content[0].block_size == 256
    text = path.read_text().splitlines()
    given_up = tmp_path / "gave_up.csv"
    lines = [
        f"{text[0].replace('prefix_ids', 'session')},gave_up_s",
        *(f"{line.rsplit(',', 1)[0]},s{i}," for i, line in enumerate(text[1:])),
    ]
    lines[3] = "50.9,2560,64,,,0,s2,90"
    given_up.write_text("\n".join(lines) + "\n")
    with pytest.raises(UsageError, match="gave up"):
        read_log(given_up)


def test_grids_are_of_the_engine_asked_for():
    code, out, err = run("calibrate", "--hw", "h100", "--engine", "sglang")
    assert (code, out) == (2, "")
    assert "no packaged engine grid on sglang; packaged: vllm 0.23.0" in err
    err = run("calibrate", "--hw", "h100", "--engine", "sglang", "--from", "h100/engine-grid_qwen3-14b_3.nc").stderr
    assert "measured on vllm 0.23.0, not on sglang" in err
    grids = engine_grids(RUN.gpu, [Path("h100/engine-grid_qwen3-14b_3.nc")])
    assert of_engine(grids, "VLLM", True) == of_engine(grids, "vllm 0.23.0", True) == of_engine(grids, None, True) == grids
