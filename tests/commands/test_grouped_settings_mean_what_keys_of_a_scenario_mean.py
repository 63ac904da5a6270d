"""`--engine-option num-gpu-blocks=4000`, or the flag of that name, is a key of a scenario; an unknown setting is named."""

import pytest

from simctl.options.file_options import parser_of
from simctl.scenario_files.scenario import ScenarioCell
from tests.cli import run

BASE = {"gpu": "A10", "num-prompts": "4"}
PAIRS = [
    ("--engine-option", "num-gpu-blocks=4000", {"num-gpu-blocks": "4000"}),
    ("--engine-option", "enforce-eager", {"enforce-eager": True}),
    ("--engine-option", "enable_chunked_prefill=false", {"enable-chunked-prefill": False}),
    ("--engine-option", "async_scheduling=false", {"engine-option": ["async_scheduling=false"]}),
    ("--workload-option", "prefix-block=64", {"prefix-block": "64"}),
    ("--parallel", "pp=2", {"pipeline-parallel-size": "2"}),
    ("--admission", "token-bucket=2000:4000", {"token-bucket": "2000:4000"}),
]


@pytest.mark.parametrize(("group", "pair", "keys"), PAIRS, ids=[pair for _, pair, _ in PAIRS])
def test_both_ways_are_the_same_options(group, pair, keys):
    parse = parser_of("simulate").make_context
    typed = parse("simulate", ["--gpu", "A10", "--num-prompts", "4", group, pair]).params
    plain = parse("simulate", ["--gpu", "A10", "--num-prompts", "4"]).params
    cell = ScenarioCell("simulate", {}, BASE | keys)
    assert typed == cell.options() != plain
    assert cell.shell().split()[1:] == ["simulate", "--gpu", "A10", "--num-prompts", "4", group, _as_printed(group, pair)]


def _as_printed(group, pair):
    if pair.startswith(("enforce", "enable")):
        name, _, value = pair.partition("=")
        return f"{name.replace('_', '-')}={value or 'true'}"
    return pair.replace("pp=", "pipeline-parallel-size=")


FLAGS = [
    (["--enforce-eager"], ["--engine-option", "enforce-eager"]),
    (["--no-enable-chunked-prefill"], ["--engine-option", "enable_chunked_prefill=false"]),
    (["--max-loras", "3", "--enable-lora"], ["--engine-option", "max-loras=3", "--engine-option", "enable-lora"]),
    (["--data-parallel-size=8", "--enable-expert-parallel"], ["--parallel", "dp=8", "--parallel", "ep"]),
    (["-tp", "2", "--pipeline-parallel-size", "2"], ["--tp", "2", "--parallel", "pp=2"]),
    (["-dp=8", "-ep", "-pp", "2"], ["--parallel", "dp=8", "--parallel", "ep", "--parallel", "pp=2"]),
    (["--kv-cache-dtype=fp8", "--disable-cuda-graph"], ["--kv-dtype", "fp8", "--enforce-eager"]),
    (
        ["--tp-size", "2", "--mem-fraction-static=0.8", "--max-running-requests", "9", "--disable-radix-cache"],
        ["--tp", "2", "--gpu-memory-utilization", "0.8", "--max-num-seqs", "9", "--no-enable-prefix-caching"],
    ),
]


@pytest.mark.parametrize(("engines", "ours"), FLAGS, ids=[each[0] for each, _ in FLAGS])
def test_flags_of_a_serving_command_are_taken_as_they_are(engines, ours):
    typed, grouped = (parser_of("simulate").make_context("simulate", ["--gpu", "A10", *each]).params for each in (engines, ours))
    assert typed == grouped


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--admission", "max-queu=3"), "no setting 'max-queu'; did you mean 'max-queue'?; there are max-queue, token-bucket"),
        (("--workload-option", "limit"), "limit needs a value"),
        (("--engine-option", "num-gpu-blocks=x"), "'--engine-option num-gpu-blocks': 'x' is not a valid integer range"),
        (("--num-gpu-blocks",), "No such option '--num-gpu-blocks'"),
    ],
)
def test_what_no_setting_is_is_refused(arguments, text):
    result = run("simulate", "--gpu", "A10", "--num-prompts", "4", *arguments)
    assert (result.code, result.stdout) == (2, "")
    assert text in result.stderr
