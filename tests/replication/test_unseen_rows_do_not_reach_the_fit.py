"""GB10 rows that are predicted change nothing of their prediction; rows that are calibrated on do. And most lie inside the intervals."""

import numpy as np
import pytest

from studies.replication import gb10_serving
from studies.replication.gb10_predicted import claims
from studies.replication.gb10_serving import ENGINES, half


def predicted(clients, monkeypatch):
    """Predictions of vLLM's dense rows with the figures of one row doubled."""
    plain = gb10_serving.table

    def edited(source, name):
        rows = [dict(row) for row in plain(source, name)]
        for row in rows if name == "serving" else ():
            if (row["phase"], row["engine"], row["n_concurrent"]) == ("47", "vllm", clients):
                row |= {figure: str(2 * float(row[figure])) for figure in gb10_serving.FIGURES}
        return tuple(rows)

    monkeypatch.setattr(gb10_serving, "table", edited)
    return {n: draws for n, (_, draws) in half.__wrapped__("vllm", "dense").unseen.items()}


@pytest.mark.parametrize(("clients", "reaches"), [("1", True), ("8", False), ("32", True), ("128", False)])
def test_only_seen_rows_move_a_prediction(clients, reaches, monkeypatch):
    before = {n: draws for n, (_, draws) in half("vllm", "dense").unseen.items()}
    after = predicted(clients, monkeypatch)
    assert before.keys() == after.keys() == {8, 128}
    assert any(not np.array_equal(before[n], after[n]) for n in before) == reaches


def test_every_other_number_of_clients_is_unseen():
    assert {(e, m): (half(e, m).seen, tuple(half(e, m).unseen)) for e in ENGINES for m in ("moe", "dense")} == {
        (engine, model): rows
        for engine in ENGINES
        for model, rows in (("moe", ((1, 32, 192), (8, 128, 256))), ("dense", ((1, 32), (8, 128))))
    }


def test_serving_tables_are_predicted():
    by_name = {claim.name: claim for claim in claims()}
    assert by_name["GP11"].verdict == "within"
    # recorded misses: a first token at 8 clients, and the decode rate at 128, four times the most that was calibrated on
    assert {name for name in (f"GP{i:02d}" for i in range(1, 11)) if by_name[name].verdict == "differs"} == {"GP01", "GP05"}
