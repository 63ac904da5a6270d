"""GB10 rows that are predicted are not learnt from, and lie inside the intervals; a burst's figures and seconds are inverses."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from studies.population.published_gpus import learnt_rows
from studies.population.published_rates import gb10_llamacpp
from studies.population.served_rates import figures
from studies.replication import gb10_bursts
from studies.replication.gb10_bursts import ENGINES, MODELS, in_figures, in_seconds, scheduled, served_rows
from studies.replication.gb10_predicted import claims
from studies.replication.gb10_serving import half


@pytest.mark.parametrize(("clients", "reaches"), [("1", True), ("8", False), ("32", True), ("128", False)])
def test_only_learnt_rows_reach_the_fit(clients, reaches, monkeypatch):
    before = [row.printed for row in learnt_rows("vllm")]
    plain = gb10_bursts.table

    def doubled(source, name):
        rows = [dict(row) for row in plain(source, name)]
        for row in rows if name == "serving" else ():
            if (row["phase"], row["engine"], row["n_concurrent"]) == ("47", "vllm", clients):
                row |= {figure: str(2 * float(row[figure])) for figure in gb10_bursts.FIGURES}
        return tuple(rows)

    monkeypatch.setattr(gb10_bursts, "table", doubled)
    assert any(not np.array_equal(a, b) for a, b in zip(before, (r.printed for r in learnt_rows("vllm")), strict=True)) == reaches


def test_every_other_number_of_clients_is_unseen():
    assert {(e, m): (half(e, m).seen, tuple(half(e, m).unseen)) for e in ENGINES for m in MODELS} == {
        (engine, model): rows
        for engine in ENGINES
        for model, rows in (("moe", ((1, 32, 192), (8, 128, 256))), ("dense", ((1, 32), (8, 128))))
    }


def test_figures_of_a_burst_are_sums_over_its_pieces():
    row = served_rows("llama.cpp-paged", "dense")[1]
    burst, known = scheduled(row), gb10_llamacpp()
    seen = figures(known, [(burst, in_seconds(row.clients, row.printed))])
    assert seen.weights.shape == (len(known.cells) + 3, len(known.cells) + len(burst.pieces))
    assert_allclose(in_figures(row.clients, seen.seconds[-3:]), row.printed)
    each = np.random.default_rng(0).random(len(seen.pieces))  # any seconds of the pieces
    whole, after, first = (seen.weights @ each)[-3:]
    assert_allclose(whole, each[len(known.cells) :].sum())
    assert 0 < after < whole
    assert whole - after == pytest.approx(max(first, whole - after))  # the mean first token is no later than the last


def test_serving_tables_are_predicted():
    by_name = {claim.name: claim for claim in claims()}
    assert {name for name in (f"GP{i:02d}" for i in range(1, 16)) if by_name[name].verdict == "differs"} == set()
