"""Wrong input to what-if and its map gives one line on stderr, exit 2, nothing on stdout and no file."""

import pytest

from tests.cli import run

GOOD = {"--ctx": "1M", "--gpu": "A10"}
BAD = [
    ({"--ctx": "1Q"}, "1Q"),
    ({"--ctx": "-5"}, "-5"),
    ({"--ctx": "0"}, "0"),
    ({"--ctx": "nan"}, "nan"),
    ({"--ctx": "1.00001K"}, "whole"),
    ({"--ctx": "99999999M"}, "range"),
    ({"--gpu": "A1O"}, "A10"),
    ({"--gpu": ""}, "unknown GPU"),
    ({"--model": "Qwen2.5-7C"}, "Qwen2.5-7B"),
    ({"--batch": "0"}, "batch"),
    ({"--batch": "1,two"}, "two"),
    ({"--batch": "1e9"}, "1e9"),
    ({"--k": "-8"}, "-8"),
    ({"--tp": "3"}, "heads"),
    ({"--dtype": "bf17"}, "bf17"),
    ({"--kv-dtype": "int3"}, "int3"),
    ({"--draws": "-1"}, "draws"),
    ({"--seed": "-1"}, "seed"),
    ({"--engine": "tgi"}, "tgi"),
    ({"--plot": "/nonexistent/x.png"}, "/nonexistent"),
]


def arguments(changes):
    return [part for item in {**GOOD, **changes}.items() for part in item]


@pytest.mark.parametrize(("changes", "named"), BAD, ids=lambda v: " ".join(v) if isinstance(v, str) else "=".join(*v.items()))
def test_one_line_exit_2(changes, named):
    result = run("what-if", *arguments(changes))
    assert result.code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert named in result.stderr


def test_missing_option_is_named():
    result = run("what-if", "--gpu", "A10")
    assert result.code == 2
    assert "--ctx" in result.stderr


def test_wrong_plot_suffix_leaves_no_file(tmp_path):
    result = run("what-if", *arguments({"--plot": str(tmp_path / "x.exe")}))
    assert result.code == 2
    assert list(tmp_path.iterdir()) == []


def test_regime_map_checks_its_ladder():
    result = run("what-if", "--gpu", "H100", "--ctx", "4K", "--map", "hbm")
    assert result.code == 2
    assert len(result.stderr.splitlines()) == 1
