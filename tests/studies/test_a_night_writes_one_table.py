"""The nightly table keeps a line for each check: its last run, passed or not, and what it said last."""

import pytest

from studies import nightly


@pytest.fixture
def table(tmp_path, monkeypatch):
    (tmp_path / "logs").mkdir()
    monkeypatch.setattr(nightly, "TABLE", tmp_path / "nightly.md")
    monkeypatch.setattr(nightly, "LOGS", tmp_path / "logs")
    commands = {"good": "echo 5 passed", "bad": "echo '2 failed | 3 passed'; exit 3", "endless": "echo begun; sleep 60"}
    monkeypatch.setattr(nightly, "steps", lambda seed: commands)
    return tmp_path / "nightly.md"


def test_a_failure_is_a_line_and_the_exit_code(table):
    assert nightly.main(["good"]) == 0
    assert nightly.main(["bad"]) == 1
    assert nightly.main(["endless", "--hours", "0.0002"]) == 1
    rows = nightly.rows_of(table.read_text())
    assert {name: (row.result, row.said) for name, row in rows.items()} == {
        "good": ("passed", "5 passed"),
        "bad": ("failed (3)", "2 failed 3 passed"),
        "endless": ("out of time", "begun"),
    }
    assert nightly.table_of(rows) == table.read_text()


def test_every_target_of_make_is_there():
    makefile = (nightly.ROOT / "Makefile").read_text()
    for command in nightly.steps(1).values():
        if command.startswith("make "):
            assert f"\n{command.split()[1]}:" in makefile
