"""Three requests of long prompts are compared with what was predicted; only learning needs more. Cached prompts are told."""

import pytest

from simctl.cli import main

SERVED = ("--model", "Llama-3.1-8B", "--gpu", "H100", "--draws", "2")


def log(path, prompt, first_s):
    lines = ["arrival_s,prompt_tokens,output_tokens,first_token_s,finish_s"]
    for i in range(3):
        sent, size = 20.0 * i, prompt + 100 * i
        came = sent + first_s * size / prompt
        lines.append(f"{sent},{size},50,{came},{came + 0.5 + 0.01 * i}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def status(*argv):
    with pytest.raises(SystemExit) as ended:
        main(["validate", *argv])
    return ended.value.code


@pytest.mark.parametrize("as_it_is", [("--transferred",), ("--host", "0.8")], ids=["never seen", "a known host"])
def test_three_requests_of_120k_tokens_are_compared(tmp_path, capsys, as_it_is):
    assert status("--run", log(tmp_path / "a.csv", 120_000, 9.2), *SERVED, *as_it_is) == 1  # a score in bound is not the claim
    said = capsys.readouterr().out
    assert "TTFT     3" in said
    assert "shared prefixes?" not in said


def test_learning_from_three_is_refused(tmp_path, capsys):
    assert status("--run", log(tmp_path / "a.csv", 120_000, 9.2), *SERVED) == 2
    assert "3 answered requests are too few to learn from: at least 10" in capsys.readouterr().err


def test_prompts_answered_below_their_roofline_are_told(tmp_path, capsys):
    assert status("--run", log(tmp_path / "a.csv", 120_000, 0.3), *SERVED, "--transferred") == 1
    assert "shared prefixes? 3 of 3 prompts" in capsys.readouterr().out
