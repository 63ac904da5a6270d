"""A name that stands for a known shape heads the answer as it was typed, beside the shape; spellings of the shape's own name do not."""

import pytest

from tests.cli import run


@pytest.mark.parametrize(
    ("typed", "heading"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", "Llama-3.3-70B-Instruct (Llama-3.1-70B's shape) on"),
        ("meta-llama/Llama-3.1-70B-Instruct", "Llama-3.1-70B on"),
        ("llama3.1_70b", "Llama-3.1-70B on"),
    ],
)
@pytest.mark.parametrize("context", ["8K", "128K"])
def test_heading(typed, heading, context):
    code, out, _ = run("what-if", "--ctx", context, "--gpu", "H100", "--tp", "4", "--model", typed)
    assert code == 0
    assert any(line.startswith(heading) for line in out.splitlines())


def test_a_single_user_is_not_counted_twice():
    assert "=> 1 user of 32K fits" in run("what-if", "--ctx", "32K", "--gpu", "H200", "--tp", "8", "--model", "Kimi-K2").stdout
