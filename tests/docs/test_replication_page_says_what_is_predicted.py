"""The page's words on the GB10 serving tables are those of the claims."""

import re

import pytest

from studies.replication.gb10_predicted import claims
from tests.docs.test_replication_page_is_what_the_data_say import PAGE
from tests.replication.packaged_claims import claims as packaged


@pytest.fixture(scope="module")
def found():
    """Claims by name: worked out by who asks, not by whoever collects."""
    return {claim.name: claim for claim in claims()}


def test_coverage_and_the_worst_figure(found):
    inside, worst = re.fullmatch(r"(\d+) inside .* off by [\d.]+% in the median, (\d+)% at worst", found["GP11"].ours).groups()
    all_ = re.match(r"\d+", found["GP11"].published)[0]
    assert f"{inside} of {all_} figures lie inside their intervals. The worst is {worst} % off." in PAGE


def test_schedulers_and_drafts(found):
    held = [found[f"GP{i}"].verdict for i in range(16, 20)]
    assert (held.count("within"), len(held)) == (2, 4)
    assert "Two of four scheduler changes have the recorded effect." in PAGE
    mine = [float(v) for v in re.findall(r"0\.\d\d", found["GP20"].ours)]
    assert all(0 < v < 1 for v in mine)
    assert f"{mine[0]:.2f}, {mine[1]:.2f} and {mine[2]:.2f} of it here" in PAGE


def test_how_many_claims_there_are():
    assert f"answers {len(packaged('all'))} claims of five reports" in PAGE
