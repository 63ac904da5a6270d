"""A verdict follows the figures: change one that a report printed, and its claim no longer holds."""

import re

import numpy as np
import pytest

from studies.replication import brl07, gb10, gdn, routing, tr164
from studies.replication.claims import compared, held

CHANGED = [
    (tr164, "tr164", "run_cost", "measured_h100_s", "T12"),
    (gb10, "gb10", "decode_difference_method", "true_decode_tps", "G01"),
    (brl07, "brl07", "byte_bill", "value", "B01"),
    (routing, "routing", "per_worker", "n_requests", "R01"),
    (gdn, "gdn", "recurrence_efficiency", "effective_bw_gb_per_s", "D02"),
]


@pytest.mark.parametrize(("module", "source", "name", "column", "claim"), CHANGED, ids=[row[-1] for row in CHANGED])
def test_a_changed_table_changes_its_verdict(module, source, name, column, claim, monkeypatch):
    plain = module.table

    def edited(of, table):
        rows = [dict(row) for row in plain(of, table)]
        if (of, table) == (source, name):
            for row in rows:
                if re.fullmatch(r"[0-9.]+", row[column]):
                    row[column] = str(int(float(row[column]) * 2))
        return tuple(rows)

    before = {found.name: found.verdict for found in module.claims()}
    monkeypatch.setattr(module, "table", edited)
    after = {found.name: found.verdict for found in module.claims()}
    assert before[claim] in ("reproduced", "within")
    assert after[claim] == "differs"


@pytest.mark.parametrize(
    ("how", "verdict"), [("tables", "reproduced"), ("formula", "within"), ("simulated", "within"), ("measured", "within")]
)
def test_a_claim_holds_up_to_its_tolerance(how, verdict):
    assert compared("T01", "1", "1", 0.1, 0.1, how).verdict == verdict
    assert compared("T01", "1", "1", 0.2, 0.1, how).verdict == "differs"


@pytest.mark.parametrize(("figures", "verdict", "ours"), [([1.0, 5.0], "within", "a, b."), ([1.0, 9.0], "differs", "a, b (out).")])
def test_without_a_tolerance_every_interval_must_hold_its_figure(figures, verdict, ours):
    draws = np.array([np.linspace(0, 2, 101), np.linspace(4, 6, 101)])
    claim = held("GP01", "1, 5", np.array(figures), draws, ["a", "b"], ".", unit="ms")
    assert (claim.verdict, claim.ours, claim.unit) == (verdict, ours, "ms")
    assert (claim.low, claim.high) == pytest.approx((0.1, 1.9))
