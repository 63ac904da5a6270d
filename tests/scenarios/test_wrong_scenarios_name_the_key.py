"""A wrong scenario is refused in one line that names the file and the key; nothing runs and nothing is written."""

import pytest

from tests.cli import run

GOOD = "question: How fast?\ncommand: what-if\noptions: {ctx: 8K, gpu: H100}\nreport: [knee.batch]\n"
BAD = {
    "unknown key": (GOOD + "sweeep: {}\n", "sweeep"),
    "no question": (GOOD.replace("How fast?", "fast"), "question"),
    "unknown command": (GOOD.replace("what-if", "what-of"), "what-of"),
    "unknown option": (GOOD.replace("ctx:", "ctxx:"), "options.ctxx"),
    "unknown sweep": (GOOD + "sweep: {gpuu: [A10]}\n", "sweep.gpuu"),
    "sweep is no list": (GOOD + "sweep: {gpu: A10}\n", "sweep.gpu"),
    "empty sweep": (GOOD + "sweep: {gpu: []}\n", "sweep.gpu"),
    "report is no list": (GOOD.replace("[knee.batch]", "knee"), "report"),
    "unknown report": (GOOD.replace("knee.batch", "knee.bach"), "knee.bach"),
    "not YAML": ("question: [\n", "not YAML"),
    "a list": ("- 1\n", "mapping"),
    "python object": ("question: !!python/object/apply:os.system [ls]\n", "not YAML"),
    "options is a list": (GOOD.replace("{ctx: 8K, gpu: H100}", "[1]"), "options"),
    "null value": (GOOD.replace("8K", "null"), "ctx"),
    "bad value": (GOOD.replace("8K", "8Q"), "8Q"),
    "too many runs": (GOOD + f"sweep: {{seed: {list(range(200))}, draws: {list(range(20, 100))}}}\n", "sweep"),
}


@pytest.mark.parametrize("name", BAD)
def test_one_line_that_names_it(name, tmp_path):
    text, named = BAD[name]
    path = tmp_path / "study.yaml"
    path.write_text(text)
    result = run("run", str(path))
    assert result.code == 2
    assert len(result.stderr.splitlines()) == 1
    assert named in result.stderr


def test_missing_file(tmp_path):
    result = run("run", str(tmp_path / "none.yaml"))
    assert result.code == 2
    assert "none.yaml" in result.stderr


def test_set_is_checked_like_the_file(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(GOOD)
    assert "options.gpux" in run("run", str(path), "--set", "gpux=A10").stderr
    assert "OPTION=VALUE" in run("run", str(path), "--set", "gpu").stderr
