"""The page's words on the GB10 serving tables are those of the claims."""

import re

from studies.replication.gb10_predicted import claims
from studies.replication.reports import claims as claims_of
from tests.docs.test_replication_page_is_what_the_data_say import PAGE

FOUND = {claim.name: claim for claim in claims()}


def test_coverage_and_the_worst_figure():
    inside, worst = re.fullmatch(r"(\d+) inside .* off by [\d.]+% in the median, (\d+)% at worst", FOUND["GP11"].ours).groups()
    all_ = re.match(r"\d+", FOUND["GP11"].published)[0]
    assert f"{inside} of {all_} figures lie inside their intervals. The worst, {worst} % off, is decode at 128 clients." in PAGE
    assert "270 (out)" in FOUND["GP05"].ours


def test_schedulers_and_drafts():
    held = [FOUND[f"GP{i}"].verdict for i in range(16, 20)]
    assert (held.count("within"), len(held)) == (3, 4)
    assert "Three of four scheduler changes have the recorded effect." in PAGE
    together = re.match(r"([\d.]+)", FOUND["GP20"].ours)[1]
    assert 1.5 < float(together) < 2.5
    assert "would double" in PAGE


def test_how_many_claims_there_are():
    assert f"answers {len(claims_of('all'))} claims of five reports" in PAGE
