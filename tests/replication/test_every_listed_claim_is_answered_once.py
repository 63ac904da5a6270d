"""All identifiers of the list of reproduction targets have one answer, by the report they belong to, among those that are packaged."""

import json
import re
from collections import Counter
from functools import cache
from importlib.resources import files

import pytest

from studies.replication.reports import REPORTS
from tests.cli import run
from tests.replication.packaged_claims import claims

ALL = claims("all")


@cache
def listed():
    """Statement by identifier, as the list of reproduction targets has it."""
    text = (files("scenarios") / "data" / "reference" / "checks.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| ([A-Z]\d\d) \| (.*?) \|", text, flags=re.MULTILINE))


def test_the_list_is_answered_whole():
    assert len(listed()) == 74
    assert Counter(claim.name for claim in ALL if claim.name in listed()) == dict.fromkeys(listed(), 1)


def test_every_other_claim_says_by_its_name_that_it_is_beyond_the_list():
    beyond = Counter(claim.name for claim in ALL if claim.name not in listed())
    assert set(beyond.values()) == {1}
    assert [name for name in beyond if not re.fullmatch(r"[A-Z][MPS]\d+", name)] == []


@pytest.mark.parametrize("report", REPORTS)
def test_a_report_answers_in_the_order_of_the_list(report):
    names = [claim.name for claim in claims(report)]
    assert names == sorted(names)
    assert names


def test_every_answer_says_something_on_both_sides():
    assert [claim for claim in ALL if not (claim.published and claim.ours)] == []


def test_the_contradictions_that_the_list_names_are_found():
    differs = {claim.name for claim in ALL if claim.verdict == "differs" and claim.name in listed()}
    assert {"B07", "B08", "G05", "G10", "R04", "R06", "X01", "X04", "X05", "X06", "X09"} <= differs
    assert differs - {"B07", "B08", "G05", "G10", "R04", "R06", "X01", "X04", "X05", "X06", "X09"} == {"T15"}


def test_the_command_prints_what_the_functions_find_within_80_columns():
    done = run("replicate", "brl07")
    assert done.code == 0
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "B04  within" in done.stdout
    rows = json.loads(run("replicate", "all", "--json").stdout)
    assert [row["name"] for row in rows] == [claim.name for claim in ALL]


def test_an_unknown_report_is_one_line():
    done = run("replicate", "tr165")
    assert done.code == 2
    assert "tr165" in done.stderr.splitlines()[-1]
