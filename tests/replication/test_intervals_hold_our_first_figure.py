"""The interval of a claim is that of the first figure of ours, and goes wherever the claim goes: terminal, JSON and report."""

import json
import re

import pytest

from simctl.report.of_claims import part_of
from simctl.text.claims_text import interval
from tests.cli import run
from tests.replication.packaged_claims import claims

WITH = [claim for claim in claims("all") if claim.low is not None]


@pytest.mark.parametrize("claim", WITH, ids=[claim.name for claim in WITH])
def test_our_first_figure_is_inside(claim):
    first = re.search(r"[-+]?\d[\d.]*", claim.ours)
    assert first is not None
    half_its_last_place = 0.5 * 10.0 ** -len(first[0].partition(".")[2])
    assert claim.low - half_its_last_place <= float(first[0]) <= claim.high + half_its_last_place
    assert claim.low < claim.high


def test_what_is_recomputed_exactly_has_none():
    assert [claim.name for claim in claims("all") if claim.how == "tables" and claim.low is not None] == []
    assert {"B03", "B04", "B05", "GP01", "BM01", "RS1"} <= {claim.name for claim in WITH}


def test_it_is_printed_and_reported():
    rows = json.loads(run("replicate", "gdn", "--json").stdout)
    (row,) = [row for row in rows if row["name"] == "DM1"]
    told = interval(row)
    assert re.fullmatch(r"[\d.]+ to [\d.]+ %", told)
    assert f"90 % interval: {told}" in run("replicate", "gdn").stdout
    assert ["DM1", told] in [[row[0], row[-1]] for _, _, table in part_of(rows).tables for row in table]


def test_claims_saved_without_intervals_are_still_reported():
    rows = json.loads(run("replicate", "gdn", "--json").stdout)
    old = [{name: value for name, value in row.items() if name not in ("low", "high", "unit")} for row in rows]
    assert {row[-1] for _, _, table in part_of(old).tables for row in table} == {""}


@pytest.mark.parametrize(
    ("low", "high", "text"), [(281.2, 344.4, "281 to 344"), (1082.4, 1390.2, "1082 to 1390"), (2.9281, 2.9312, "2.928 to 2.931")]
)
def test_both_ends_have_digits_enough_to_differ(low, high, text):
    assert interval({"low": low, "high": high, "unit": "x"}) == f"{text} x"
