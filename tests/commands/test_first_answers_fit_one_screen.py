"""The first answer: a verdict and a table on one screen in words of the field; the rest on --explain."""

import pytest

from tests.cli import run

INNER = ("hierarchy over GPUs", "two-term", "closed form", "page-16", "block-128", "Fidelity", "n_max", "posterior", "residual")


@pytest.mark.parametrize(
    "asked",
    [
        ("--ctx", "1M", "--gpu", "A10", "--model", "Qwen3-8B"),
        ("--ctx", "32K", "--gpu", "H100", "--model", "Llama-3.1-8B", "--sparse"),
        ("--ctx", "128K", "--gpu", "MI300X", "--model", "Qwen3-30B-A3B", "--dtype", "fp8", "-tp", "2"),
        ("--ctx", "128K", "--gpu", "GB10", "--model", "DeepSeek-V3"),
        ("--ctx", "8K", "--gpu", "L4", "--model", "Qwen3-Next-80B-A3B", "--k", "8"),
    ],
)
def test_what_if_fits_80_by_24(asked):
    text = run("what-if", *asked).stdout
    lines = text.splitlines()
    assert lines[0].startswith("=> At ")
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert not [word for word in INNER if word in text]
    whole = run("what-if", *asked, "--explain").stdout
    assert whole.startswith(text[: text.index("\n\n")])
    assert "Rates:" in whole
    assert len(whole) > len(text)


@pytest.mark.parametrize(
    "asked",
    [
        ("--ctx", "8K", "--gpu", "H100", "--model", "Qwen3-32B"),
        ("--ctx", "4K", "--gpu", "RTX-4090", "--batch", "1,8,500"),
        (
            "--ctx",
            "128K",
            "--gpu",
            "MI300X",
            "--model",
            "Qwen3-30B-A3B",
            "--dtype",
            "fp8",
            "-tp",
            "2",
            "--users",
            "9000",
            "--think-time",
            "1m",
        ),
        ("--ctx", "16K", "--gpu", "GB10", "--model", "DeepSeek-V3"),
        ("--ctx", "63K", "--gpu", "L4", "--model", "Qwen3-Next-80B-A3B"),
    ],
)
def test_an_answer_for_people_who_serve_fits_80_by_15(asked):
    text = run("what-if", *asked).stdout
    lines = text.splitlines()
    assert lines[0].startswith("=> ")
    assert len(lines) <= 15
    assert max(map(len, lines)) <= 80
    assert not [word for word in (*INNER, "top 8") if word in text]
    assert run("what-if", *asked, "--explain").stdout.startswith(text[: text.index("\n\n")])


def _simulated(*more):
    asked = ("simulate", "--gpu", "H100", "--model", "Llama-3.1-8B", "--num-prompts", "120", "--random-output-len", "40", "--draws", "0")
    return run(*asked, *more).stdout


def test_simulate_is_a_screen_that_ends_with_the_answer():
    text = _simulated("--request-rate", "8")
    assert len(text.splitlines()) <= 35
    assert not [word for word in INNER if word in text]
    answer = text[text.index("=> ") :]
    assert "keeps up with" in answer
    assert "sent all at once" in answer
    assert "of the step time" in answer
    whole = _simulated("--request-rate", "8", "--explain")
    assert "P95 TTFT" in whole
    assert whole.endswith(answer)


@pytest.mark.parametrize(
    "asked",
    [
        ("what-if", "--ctx", "8K", "--gpu", "H100"),
        ("what-if", "--ctx", "8K", "--gpu", "H100", "--explain"),
        ("simulate", "--gpu", "H100", "--num-prompts", "4", "--request-rate", "9", "--draws", "0"),
    ],
)
def test_a_model_that_nobody_named_is_said_to_be_so(asked):
    assert "Qwen2.5-7B-1M (no --model given) on " in " ".join(run(*asked).stdout.split())
    assert "no --model given" not in run(*asked, "--model", "Qwen2.5-7B-1M").stdout


def test_the_answer_says_whether_it_queues():
    behind = " ".join(_simulated("--request-rate", "500").split())
    assert "=> Saturated at" in behind
    assert "still waited when the last one arrived" in behind
    short = " ".join(_simulated("--request-rate", "40").split())
    assert "for good, the queue grows without end" in short
    assert "sent all at once" not in short
    capped = _simulated("--request-rate", "20", "--max-num-seqs", "2")
    assert "Max_num_seqs 2 is reached" in " ".join(capped.split())
    assert "8 clients get" in _simulated("--max-concurrency", "8")


def test_headroom_is_what_all_at_once_are_served_at():
    from sim import Deployment, Workload, simulate

    deployment = Deployment.of("Llama-3.1-8B", "H100")
    paced = simulate(deployment, Workload.drawn(100, request_rate=5.0), draws=0)
    at_once = simulate(deployment, Workload.drawn(100), draws=0)
    assert paced.served_at_once_per_s == at_once.summary["request_throughput"]
    assert at_once.served_at_once_per_s is None


def test_what_would_move_an_answer_stands_under_its_verdict():
    first = run("what-if", "--ctx", "8K", "--gpu", "RTX-4090", "-tp", "2", "--model", "Qwen3-14B").stdout.partition("\n\n")[0]
    assert "the GPUs have no peer access" in first
    assert "over PCIe with it" in first
    assert "peer access" not in run("what-if", "--ctx", "8K", "--gpu", "H100", "-tp", "2", "--model", "Qwen3-14B").stdout
