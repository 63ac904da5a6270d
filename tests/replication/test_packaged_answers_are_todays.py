"""`simctl replicate` answers from a packaged file: what the studies work out today, claim by claim."""

import json
from dataclasses import asdict

import pytest

from simctl.commands.replicate_command import NAMES, worked_out
from studies.replication.reports import REPORTS, claims
from tests.cli import run

QUICK = ("gdn",)  # of the tables alone; the others wait for a simulation


@pytest.mark.parametrize("report", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in REPORTS])
def test_a_report_is_answered_as_it_is_worked_out(report):
    known = [rounded(claim) for claim in worked_out()["claims"] if claim["report"] == report]
    assert known == [rounded({"report": report} | asdict(claim)) for claim in claims(report)]


def rounded(claim):
    """Its interval to six digits: platforms differ in the last ones."""
    return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in claim.items()}


def test_the_command_prints_every_packaged_claim():
    assert [*REPORTS, "all"] == list(NAMES)
    assert json.loads(run("replicate", "all", "--json").stdout) == worked_out()["claims"]
    said = run("replicate", "gdn").stdout
    assert said.splitlines()[-1] == f"worked out on {worked_out()['date']} by simctl {worked_out()['version']}"
    count = sum(claim["report"] == "gdn" for claim in worked_out()["claims"])
    assert said.splitlines()[-2].startswith(f"{count} claims: ")
