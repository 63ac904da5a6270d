"""`make rates` runs what is stale, in order, and after a failure goes on with the step that failed."""

import pytest

from studies.rates import STEPS, Step, files_of, rebuild

COPY = "import pathlib, sys; pathlib.Path(sys.argv[2]).write_text(pathlib.Path(sys.argv[1]).read_text())"
FIRST = Step("first", ("docs", "copy.py", "in.txt", "middle.txt"), ("in.txt",), ("middle.txt",))
LAST = Step("last", ("docs", "copy.py", "middle.txt", "out.txt"), ("middle.txt",), ("out.txt",), formula=False)


@pytest.fixture
def root(tmp_path):
    (tmp_path / "copy.py").write_text(COPY)
    (tmp_path / "in.txt").write_text("1")
    return tmp_path


def ran(capsys):
    return [line.split(":")[0] for line in capsys.readouterr().out.splitlines() if "rebuilt in" in line]


def test_only_what_reads_something_new_runs(root, capsys):
    assert rebuild((FIRST, LAST), root) == 0
    assert ran(capsys) == ["first", "last"]
    assert rebuild((FIRST, LAST), root) == 0
    assert ran(capsys) == []
    (root / "in.txt").write_text("2")
    assert rebuild((FIRST, LAST), root) == 0
    assert ran(capsys) == ["first", "last"]
    assert (root / "out.txt").read_text() == "2"
    (root / "out.txt").unlink()
    assert rebuild((FIRST, LAST), root) == 0
    assert ran(capsys) == ["last"]


def test_another_formula_makes_what_prices_iterations_stale(root, capsys, monkeypatch):
    rebuild((FIRST, LAST), root)
    capsys.readouterr()
    monkeypatch.setattr("studies.rates.formula_fingerprint", lambda: "another")
    rebuild((FIRST, LAST), root)
    assert ran(capsys) == ["first"]  # and what it wrote is as it was


def test_a_failure_stops_and_is_gone_on_from(root, capsys):
    (root / "copy.py").write_text(f"import sys\nif sys.argv[2] == 'out.txt': sys.exit(3)\n{COPY}")
    assert rebuild((FIRST, LAST), root) == 3
    assert ran(capsys) == ["first"]
    (root / "copy.py").write_text(COPY)
    assert rebuild((FIRST, LAST), root) == 0
    assert ran(capsys) == ["last"]


def test_a_page_shows_what_the_command_printed(root):
    (root / "page.txt").write_text("$ as users type it\nof another day\n")
    (root / "copy.py").write_text("print('a line ')\nprint('another')")
    assert rebuild((Step("shown", ("docs", "copy.py"), (), (), page="page.txt"),), root) == 0
    assert (root / "page.txt").read_text() == "$ as users type it\na line\nanother\n"


def test_a_list_rebuilds_nothing(root, capsys):
    assert rebuild((FIRST,), root, run=False) == 0
    assert capsys.readouterr().out == "first: to be rebuilt\n"
    assert not (root / "middle.txt").exists()


def test_every_step_reads_and_writes_files_that_exist():
    from studies.rates import ROOT

    for step in STEPS:
        assert [pattern for pattern in (*step.reads, *step.writes) if not files_of((pattern,), ROOT)] == []
    written = [str(path) for step in STEPS for path in files_of(step.writes, ROOT)]
    assert len(written) == len(set(written))
    packaged = {str(p) for p in files_of(("scenarios/data/posteriors/**/*",), ROOT)}
    assert packaged <= set(written)
