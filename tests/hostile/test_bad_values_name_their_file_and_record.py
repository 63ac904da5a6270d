"""Logs, traces, posteriors and options with values that no program should write: one line that names the file and the record."""

import json

import numpy as np
import pytest

from calibrate.logs.read import read_log
from sim.errors import UsageError, ending
from sim.rates.posterior import PosteriorError, rates_from_file
from sim.specs.gpus import get_gpu
from tests.cli import run
from tests.hostile.kinds import LOGS, write_posterior

BODIES = dict(LOGS)
HUGE = int("9" * 400)


def bench(field, value):
    body = json.loads(json.dumps(BODIES["bench.json"]))
    if isinstance(body[field], list):
        body[field][4] = value
    else:
        body[field] = value
    return "bench.json", json.dumps(body)


def guide(value):
    body = json.loads(json.dumps(BODIES["guide.json"]))
    body["benchmarks"][0]["requests"]["successful"][4] = value
    return "guide.json", json.dumps(body)


def air(section, value):
    rows = json.loads(json.dumps(BODIES["aiperf.jsonl"]))
    rows[5][section] = value
    return "aiperf.jsonl", "\n".join(map(json.dumps, rows))


def row(text):
    lines = BODIES["log.csv"].splitlines()
    lines[5] = text
    return "log.csv", "\n".join(lines)


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (bench("input_lens", HUGE), "bench.json: request 4: input_lens must be a finite number"),
        (bench("input_lens", [1]), "bench.json: request 4: input_lens must be a number"),
        (bench("input_lens", float("inf")), "bench.json: request 4: input_lens must be a finite number"),
        (bench("ttfts", HUGE), "bench.json: request 4: ttft_s is not a number"),
        (bench("itls", [None]), "bench.json: request 4: lacks itl"),
        (bench("burstiness", "high"), "bench.json: burstiness must be a number"),
        (bench("request_rate", {"x": 1}), "bench.json: request_rate must be a number"),
        (bench("max_concurrency", -1e300), "bench.json: max_concurrency must be a finite number of at least 0"),
        (bench("input_lens", -5), "bench.json: request 4: input_lens must be a finite number of at least 0"),
        (bench("max_concurrency", float("nan")), "bench.json: max_concurrency must be a finite number"),
        (guide(7), "guide.json: successful request 4: not a JSON object"),
        (guide({"request_start_time": HUGE}), "guide.json: successful request 4: lacks end_time"),
        (air("metrics", [1]), "aiperf.jsonl: line 6: metrics is no object"),
        (
            air("metrics", {"input_sequence_length": {"value": HUGE, "unit": "tokens"}}),
            "line 6: metrics.input_sequence_length.value must be",
        ),
        (air("metadata", "x"), "aiperf.jsonl: line 6: lacks metadata"),
        (row("4,inf,20,4.1,4.5,"), "log.csv: line 6: prompt_tokens must be a whole number"),
        (row("4,1e300,20,4.1,4.5,"), "log.csv: line 6: prompt_tokens must be a whole number"),
        (row("inf,100,20,4.1,4.5,"), "log.csv: line 6: was sent at inf s"),
        (row("4,100,20,inf,4.5,"), "log.csv: line 6: ttft_s is not a number"),
        (("wide.csv", BODIES["log.csv"] + "," * 2**24), "wide.csv: more than 12,582,912 values"),
        (("deep.json", "[" * 100_000), "deep.json: not JSON (nested too deep)"),
        (("wide.json", '{"a": [' + "[]," * 4_000_000 + "[]]}"), "wide.json: not JSON (more than 12,582,912 values)"),
    ],
)
def test_logs(file, says, tmp_path):
    name, text = file
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError) as error:
        read_log(tmp_path / name)
    assert says in str(error.value)


@pytest.mark.parametrize("field", ["request_rate", "burstiness"])
def test_an_arrival_process_that_cannot_be_drawn_is_named(field, tmp_path):
    body = dict(BODIES["bench2.json"])
    for value in (0, -1, float("nan"), 1e-320):
        (tmp_path / "bench.json").write_text(json.dumps(body | {field: value}))
        if field == "burstiness" and value == 0:
            continue  # as good as left out
        with pytest.raises(UsageError, match=f"bench.json: {field}"):
            read_log(tmp_path / "bench.json")


BURST = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
CALL = '"prompt_tokens": 5, "output_tokens": 2'


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("burstgpt", BURST + "1,m,\r40,5,45,x\n", "line 2: not CSV"),
        ("burstgpt", BURST.replace("\n", "\r") + "1,m,4,5,6,x", "line 1: not CSV"),
        ("burstgpt", BURST + f"1,{'m' * 200_000},40,5,45,x\n", "line 2: not CSV (field larger"),
        ("jsonl", f'{{"arrival_s": 0, {CALL}, "request_id": "\\ud800"}}\n', "line 1: request_id holds a NUL or half a surrogate pair"),
        ("jsonl", f'{{"arrival_s": 0, {CALL}, "session_id": "a\\u0000"}}\n', "line 1: session_id holds a NUL or half"),
        ("jsonl", "[" * 100_000, "line 1: not a JSON object (nested too deep)"),
        ("jsonl", '{"a": [' + "[]," * 4_000_000 + "[]]}", "line 1: not a JSON object (more than 12,582,912 values)"),
        ("sharegpt", '[{"conversations": ' + "[" * 100_000, "an item is nested too deep"),
        ("sharegpt", "[" + "[" * 100_000 + "]" * 100_000 + "]", "an item is nested too deep"),
        ("sharegpt", "[[" + "1," * 10_000_000, "an item longer than 16 MiB"),
    ],
)
def test_traces(kind, text, says, tmp_path):
    (tmp_path / "trace").write_text(text, newline="")
    result = run(
        "simulate",
        "--gpu",
        "A10",
        "--max-model-len",
        "auto",
        "--trace",
        str(tmp_path / "trace"),
        "--trace-format",
        kind,
        "--out",
        str(tmp_path / "run"),
    )
    assert (result.code, result.stderr.count("\n")) == (2, 1)
    assert f"simctl: trace: {says}" in result.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["trace"]


@pytest.mark.parametrize("kind", ["custom", "sharegpt"])
def test_half_a_surrogate_pair_in_a_prompt_is_only_text(kind, tmp_path):
    said = {"from": "human", "value": "\ud800 abc"}, {"from": "gpt", "value": "x\udc00"}
    body = [{"conversations": said}] if kind == "sharegpt" else {"prompt": "\ud800 abc"}
    (tmp_path / "trace").write_text(json.dumps(body))
    asked = ("simulate", "--gpu", "A10", "--max-model-len", "auto", "--trace", str(tmp_path / "trace"), "--trace-format", kind)
    assert run(*asked, "--draws", "0").code == 0


@pytest.mark.parametrize(
    ("window", "lengths", "says"),
    [
        ("0,999999,1.0,Gamma,1.0,1.0", "{5: 1}", "chunk-0-trace.csv: its rates ask for more than 10,000,000 calls"),
        ("0,0.1,1.0,Weibull,1e-300,1.0", "{5: 1}", "chunk-0-trace.csv: line 1: window start and rate"),
        ("0,0.1,1.0,Gamma,1.0,1.0", "{5: [1]}", "chunk-0-dataset.json: not a ServeGen dataset"),
        (
            "0,0.1,1.0,Gamma,1.0,1.0",
            "{5: 1, 99999999999999999999: 1}",
            "chunk-0-dataset.json: not a ServeGen dataset (ValueError: a length of 1e+20 tokens)",
        ),
        ("0,0.1,1.0,Gamma,1.0,1.0", "[" * 3000, "chunk-0-dataset.json: not a ServeGen dataset"),
    ],
)
def test_servegen_files(window, lengths, says, tmp_path):
    (tmp_path / "chunk-0-trace.csv").write_text(window + "\n")
    (tmp_path / "chunk-0-dataset.json").write_text(json.dumps({"0": {"input_tokens": lengths, "output_tokens": "{5: 1}"}}))
    result = run("simulate", "--gpu", "A10", "--max-model-len", "auto", "--trace", str(tmp_path), "--trace-format", "servegen")
    assert (result.code, result.stderr.count("\n")) == (2, 1)
    assert says in result.stderr


def _set(attrs, variables, **changes):
    attrs.update(changes)


def _shape(attrs, variables):
    dims, values = variables["beta"]
    variables["beta"] = ((*dims, "more"), values[..., None] * np.ones(3))


def _typed(attrs, variables):
    variables["beta"] = (variables["beta"][0], variables["beta"][1].astype("S3"))


def _far(attrs, variables):
    variables["beta"] = (variables["beta"][0], variables["beta"][1].astype("f8") * 1e100)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda a, v: _set(a, v, schema=np.arange(3)), "attribute schema must be a number or a text"),
        (lambda a, v: _set(a, v, family=np.arange(0.0)), "attribute family must be a number or a text"),
        (lambda a, v: _set(a, v, host_sd=np.array([0.1, 0.2])), "attribute host_sd must be a number or a text"),
        (_shape, "beta must be 10 draws"),
        (_typed, "posterior variables must be finite numbers"),
        (_far, "beta must be 10 draws in 1e-30..1e+30"),
    ],
)
def test_posteriors(change, says, tmp_path):
    path = tmp_path / "p.nc"
    write_posterior(path, "A10", change)
    with pytest.raises(PosteriorError) as error:
        rates_from_file(path, get_gpu("A10"))
    assert str(error.value).startswith(f"{path}: {says}")


DIGITS = "9" * 5000
OPTIONS = {
    "num-prompts": DIGITS, "random-input-len": "9" * 30, "random-output-len": DIGITS, "seed": f"-{DIGITS}", "tp": DIGITS,
    "max-num-seqs": DIGITS, "attention": f"pages:{DIGITS}",
    "max-model-len": DIGITS, "engine-option": f"draft_tokens={DIGITS}",
    "router-option": f"dispatch_s={DIGITS}", "host-rate": f"token_s={DIGITS}",
    "token-bucket": f"{DIGITS}:1", "goodput": f"ttft:{DIGITS}x", "dtype": DIGITS, "model": DIGITS, "goal": DIGITS, "draws": DIGITS,
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name):
    sound = {"gpu": "A10", "model": "Llama-3.1-8B", "num-prompts": "3"} | {name: OPTIONS[name]}
    result = run("simulate", *(part for option, value in sound.items() for part in (f"--{option}", value)))
    assert result.code == 2
    assert result.stderr.startswith("simctl: ")
    assert result.stderr.count("\n") == 1
    assert len(result.stderr) < 2000


def test_a_message_is_one_line_that_every_terminal_shows():
    assert ending(UsageError("a\r\nb\x1b[2J \ud800")) == (2, "a b\\x1b[2J \\ud800")
    assert ending(UsageError(f"head {'9' * 5000} tail")) == (2, f"head {'9' * 300}...{'9' * 150} tail")
    assert len(ending(UsageError("word " * 5000))[1]) < 1900
    assert ending(OverflowError("big"))[0] == ending(MemoryError())[0] == 1
