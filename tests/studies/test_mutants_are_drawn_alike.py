"""Mutants of meaning: the kinds that are drawn, each of which runs, and the same list for the same seed."""

import ast
from pathlib import Path

from studies.meaning_mutants import of_meaning
from studies.mutants import PARTS, drawn

SOURCE = """
def f(self, a):
    self.count_tokens = a.prompt_tokens + math.ceil(a.output_tokens)
    self.seen.add(a)
    if a.first_s < self.last_s:
        return min(a.first_s, 2)
    return a
"""


def test_the_kinds_of_meaning(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text(SOURCE)
    found = {(mutant.first, mutant.text) for mutant in of_meaning(file)}
    assert found == {
        (3, "pass"),
        (3, "self.count_tokens = a.output_tokens + math.ceil(a.output_tokens)"),
        (3, "self.count_tokens = a.prompt_tokens + math.ceil(a.prompt_tokens)"),
        (3, "self.count_tokens = a.prompt_tokens + math.floor(a.output_tokens)"),
        (4, "pass"),
        (5, "if a.first_s <= self.last_s:"),
        (6, "return max(a.first_s, 2)"),
    }


def test_a_seed_draws_one_list_of_sources_that_parse() -> None:
    first, again, other = (drawn(list(PARTS), 40, seed, "meaning") for seed in (5, 5, 6))
    assert first == again != other
    for _, mutant in first:
        lines = mutant.file.read_text().splitlines()
        old = lines[mutant.first - 1]
        indent = " " * (len(old) - len(old.lstrip()))
        ast.parse("\n".join([*lines[: mutant.first - 1], *(indent + line for line in mutant.text.splitlines()), *lines[mutant.last :]]))
