"""The published three-parameter step is recovered exactly from cells it made, and a held-out cell is predicted from the others."""

from pathlib import Path

import numpy as np
import pytest

from sim.errors import UsageError
from studies.replication.three_parameter import DecodeCells, fit, held_out, r_squared, read_decode, summary

BETA, C0, C1, WEIGHTS, KAPPA = 3.0e12, 2.0e-3, {8: 1.0e-3, 32: 2.5e-3}, 15e9, 57344.0
DATA = Path(__file__).parents[2] / "scenarios" / "data" / "measured"


def made(selection: bool) -> DecodeCells:
    rows = [(b, c, k) for b in (1, 4) for c in (8192.0, 131072.0, 1048576.0) for k in (0, 8, 32)]
    batch, context, k = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    read = np.where(k == 0, batch * context * KAPPA, batch * k * 128 * KAPPA)
    find = np.array([0.0 if n == 0 else C1[int(n)] for n in k])
    step = C0 + (WEIGHTS + np.where((k == 0) | selection, read, 0.0)) / BETA + find
    return DecodeCells("pretend", batch, context, k, step, np.full(batch.shape, WEIGHTS), read)


@pytest.mark.parametrize("selection", [False, True])
def test_rates_come_back(selection: bool) -> None:
    cells = made(selection)
    found = fit(cells, bytes_of_selection=selection)
    assert found.beta == pytest.approx(BETA, rel=1e-9)
    assert found.c0_s == pytest.approx(C0, rel=1e-9)
    assert found.c1_s == pytest.approx(C1, rel=1e-9)
    assert r_squared(found, cells) == pytest.approx(1.0, abs=1e-12)
    assert np.abs(held_out(cells, bytes_of_selection=selection)).max() < 1e-9


def test_a_cell_apart_is_missed_when_held_out_and_only_then() -> None:
    cells = made(True)
    step = cells.step_s.copy()
    odd = (cells.batch == 4) & (cells.context_tokens == 8192) & (cells.k_blocks == 8)
    step[odd] *= 1.5
    errors = held_out(DecodeCells("pretend", cells.batch, cells.context_tokens, cells.k_blocks, step, cells.weight_bytes, cells.read_bytes),
                      bytes_of_selection=True)  # fmt: skip
    assert errors[odd] == pytest.approx(1 / 1.5 - 1, abs=1e-9)
    assert np.abs(errors[~odd]).max() < 0.1


def test_one_size_is_refused() -> None:
    cells = made(False)
    with pytest.raises(UsageError, match="two sizes"):
        fit(cells.where((cells.context_tokens == 8192) & (cells.batch == 1)))


def test_the_committed_grids_are_read() -> None:
    cells = read_decode(DATA / "h100" / "decode_qwen2.5-7b.nc")
    found = summary(cells.where(cells.batch == 1))
    assert found["held_out_cells"] == found["cells"] >= 18
    assert 2.8e12 < found["beta_bytes_per_s"] < 3.35e12  # the datasheet's bandwidth is an upper bound
    with pytest.raises(UsageError, match="not a decode measurement"):
        read_decode(DATA / "h100" / "floor.nc")
