"""What is not plain from the limits is said above the table: whose decisions, slots of recurrent state, tiers of KV."""

import json

import pytest

from tests.cli import run

COMMON = ("simulate", "--gpu", "H100", "--num-prompts", "4", "--request-rate", "inf", "--random-input-len", "64", "--draws", "0")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "Llama-3.1-8B", "--engine", "sglang"), "engine: scheduling decisions of sglang"),
        (("--model", "Llama-3.1-8B", "--engine", "llamacpp"), "engine: scheduling decisions of llamacpp"),
        (("--model", "Qwen3.6-27B", "--max-num-seqs", "7"), "a running request on each GPU, 7 slots"),
        (("--model", "Llama-3.1-8B", "--engine-option", "host_blocks=90"), "KV blocks kept in host RAM: 90"),
    ],
)
def test_what_is_not_vllms_plain_engine_is_said(arguments, said):
    result = run(*COMMON, *arguments)
    assert result.code == 0, result.stderr
    above = result.stdout[: result.stdout.index("Serving Benchmark Result")]
    assert said in above
    assert max(map(len, above.splitlines())) <= 80


@pytest.mark.parametrize(
    ("engine", "said"),
    [("sglang", "with vllm 0.23.0; sglang is taken to step alike."), ("llamacpp", "H100: llama.cpp's kernels and sampling by a build of")],
)
def test_the_heading_is_of_what_was_measured_of_that_engine(engine, said):
    simulated = run(*COMMON, "--model", "Llama-3.1-8B", "--engine", engine).stdout
    asked = run("what-if", "--gpu", "H100", "--model", "Llama-3.1-8B", "--engine", engine, "--ctx", "8192", "--users", "2").stdout
    assert said in " ".join(simulated.split())
    assert said.rstrip(".") in " ".join(asked.split())


def test_a_plain_engine_needs_no_words():
    above = run(*COMMON, "--model", "Llama-3.1-8B").stdout
    assert not any(word in above for word in ("engine:", "recurrent state", "beyond HBM"))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), None),
        (("--engine", "llamacpp"), None),
        (("--admission", "max_queue=3"), "admission"),
        (("--replicas", "2", "--router", "lmetric", "--router-option", "snapshot_s=1"), "what router lmetric sees"),
    ],
)
def test_what_keeps_a_run_from_the_fast_path_is_said_once(arguments, why):
    result = run(*COMMON, "--model", "Llama-3.1-8B", *arguments, "--explain")
    assert result.stdout.count("simulated event by event") == (why is not None)
    assert why is None or f"event by event, for {why}" in result.stdout
    told = json.loads(run(*COMMON, "--model", "Llama-3.1-8B", *arguments, "--json").stdout)
    assert told.get("event_by_event") == why


def test_a_servegen_folder_one_level_up_says_where_to_look(tmp_path):
    (tmp_path / "data" / "reason").mkdir(parents=True)
    (tmp_path / "data" / "reason" / "chunk-0-trace.csv").write_text("")
    result = run(*COMMON[:3], "--trace", str(tmp_path), "--trace-format", "servegen")
    assert (result.code, result.stderr.count("\n")) == (2, 1)
    assert str(tmp_path / "data" / "reason") in result.stderr
