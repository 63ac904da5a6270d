"""A mutant changes one operator or number of one statement, a drawn set is the same for one seed, and what the tests see is a kill."""

from pathlib import Path

import pytest

from studies import mutants as study

SOURCE = '''"""Text with 1 + 1."""

def f(x: int = 3) -> int:
    y = max(x - 1, 0)
    return y if x < 2 else y * 2
'''
TEST = "from part import f\n\ndef test_f():\n    assert (f(1), f(2), f(3)) == (0, 2, 4)\n"


@pytest.fixture
def tree(tmp_path, monkeypatch):
    (tmp_path / "part.py").write_text(SOURCE)
    (tmp_path / "test_part.py").write_text(TEST)
    monkeypatch.setattr(study, "ROOT", tmp_path)
    monkeypatch.setattr(study, "PARTS", {"part": (("part.py",), ("test_part.py",))})
    return tmp_path


def test_each_is_one_place(tree):
    found = {(each.first, each.text) for each in study.of_operators(tree / "part.py")}
    assert found == {
        (4, "y = min(x - 1, 0)"), (4, "y = max(x + 1, 0)"), (4, "y = max(x - 2, 0)"), (4, "y = max(x - 1, 1)"),
        (5, "return y if x <= 2 else y * 2"), (5, "return y if x < 3 else y * 2"), (5, "return y if x < 2 else y / 2"),
        (5, "return y if x < 2 else y * 3"),
    }  # fmt: skip


def test_one_line_has_one_mutant_and_a_seed_its_own_set(tree):
    first = study.drawn(["part"], 100, 1)
    assert len(first) == 2
    assert first == study.drawn(["part"], 100, 1)
    assert len(study.drawn(["part"], 1, 1)) == 1


def test_what_the_tests_see_is_killed_and_the_source_comes_back(tree, tmp_path_factory):
    copy = tmp_path_factory.mktemp("copy")
    for name in ("part.py", "test_part.py"):
        (copy / name).write_text((tree / name).read_text())
    seen = study.Mutant(Path(tree / "part.py"), 5, 5, "return y if x < 2 else y * 3")
    unseen = study.Mutant(Path(tree / "part.py"), 5, 5, "return y if x <= 1 else y * 2")
    assert not study.survives("part", seen, copy, 60)
    assert study.survives("part", unseen, copy, 60)
    assert (copy / "part.py").read_text() == SOURCE
