"""A mutant changes one operator or number of one statement, a drawn set is the same for one seed, and what the tests that call it see is a
kill.
"""

from pathlib import Path

import pytest

from studies import mutants as study
from studies.covering_tests import covering

CHECKOUT = Path(__file__).parents[2]
SOURCE = '''"""Text with 1 + 1."""

def f(x: int = 3) -> int:
    y = max(x - 1, 0)
    return y if x < 2 else y * 2

def g() -> int:
    return 1
'''
TEST = "from part import f, g\n\ndef test_f():\n    assert (f(1), f(2), f(3)) == (0, 2, 4)\n\ndef test_g():\n    assert g() == 1\n"


@pytest.fixture
def tree(tmp_path, monkeypatch):
    (tmp_path / "part.py").write_text(SOURCE)
    (tmp_path / "test_part.py").write_text(TEST)
    (tmp_path / "studies").symlink_to(CHECKOUT / "studies")
    monkeypatch.setattr(study, "ROOT", tmp_path)
    monkeypatch.setattr(study, "PARTS", {"part": study.Part(("part.py",), ("test_part.py",))})
    return tmp_path


def test_each_is_one_place(tree):
    found = {(each.first, each.text) for each in study.of_operators(tree / "part.py")}
    assert found == {
        (4, "y = min(x - 1, 0)"), (4, "y = max(x + 1, 0)"), (4, "y = max(x - 2, 0)"), (4, "y = max(x - 1, 1)"),
        (5, "return y if x <= 2 else y * 2"), (5, "return y if x < 3 else y * 2"), (5, "return y if x < 2 else y / 2"),
        (5, "return y if x < 2 else y * 3"), (8, "return 2"),
    }  # fmt: skip


def test_one_line_has_one_mutant_and_a_seed_its_own_set(tree):
    first = study.drawn(["part"], 100, 1)
    assert len(first) == 3
    assert first == study.drawn(["part"], 100, 1)
    assert len(study.drawn(["part"], 1, 1)) == 1


def test_what_the_tests_that_call_it_see_is_killed_and_the_source_comes_back(tree, tmp_path_factory):
    copy = tmp_path_factory.mktemp("copy")
    (copy / "studies").symlink_to(CHECKOUT / "studies")
    for name in ("part.py", "test_part.py"):
        (copy / name).write_text((tree / name).read_text())
    tests = study.covering_tests("part", copy, 60)
    of_f, of_g = (covering(tests, "part.py", line) for line in (5, 8))
    assert [[test.name for test in found] for found in (of_f, of_g)] == [["test_part.py::test_f"], ["test_part.py::test_g"]]
    assert covering(tests, "part.py", 1) == []
    seen = study.Mutant(Path(tree / "part.py"), 5, 5, "return y if x < 2 else y * 3")
    unseen = study.Mutant(Path(tree / "part.py"), 5, 5, "return y if x <= 1 else y * 2")
    assert not study.survives("part", seen, copy, of_f)
    assert study.survives("part", unseen, copy, of_f)
    assert (copy / "part.py").read_text() == SOURCE
