"""Held-out errors with a cell's runs together: noise averages out, what the formula misses stays, and noise alone is shown beside it."""

from dataclasses import replace

import numpy as np
import pytest

from calibrate.steps.cells import StepCells, concatenate
from calibrate.steps.together import between_runs, cell_errors, parts_of, together
from tests.calibrate.steps import synthetic

NOISE = 0.05


def measured(rng: np.random.Generator, runs: int, missed: float = 0.0) -> tuple[StepCells, np.ndarray]:
    """(cells of several runs, true seconds): every run off by NOISE, and the first cell always longer by `missed`."""
    plain = synthetic(rng, sigma=0.0)
    parts = []
    for run in range(runs):
        times = plain.step_s * np.exp(NOISE * rng.standard_normal(len(plain)))
        times[0] *= np.exp(missed)
        n = len(plain)
        parts.append(replace(plain, step_s=times, repeat_sd=np.full(n, NOISE), run=np.full(n, f"{run}"), visits=np.ones(n)))
    return concatenate(parts), np.tile(plain.step_s, runs)


def test_an_exact_prediction_is_off_by_noise_alone() -> None:
    cells, true = measured(np.random.default_rng(0), runs=9)
    rows = cell_errors(cells, true)
    assert len(rows) == len(cells) // 9
    assert {(row.runs, row.visits) for row in rows} == {(9, 9)}
    assert rows[0].noise == pytest.approx(NOISE / 3)
    whole = together(rows, 0.06, np.random.default_rng(1))[0]
    assert whole.errors.median == pytest.approx(whole.noise.median, rel=0.35)
    assert whole.errors.within == pytest.approx(whole.noise.within, abs=0.05)
    assert whole.significant <= 2
    assert between_runs(cells, true) == pytest.approx(1.0, abs=0.1)


def test_what_the_formula_misses_stands_out_and_is_signed() -> None:
    cells, true = measured(np.random.default_rng(0), runs=9, missed=0.3)
    rows = cell_errors(cells, true)
    assert (rows[0].model, rows[0].cell) == (cells.model[0], cells.cell[0])
    assert rows[0].significant
    assert rows[0].error == pytest.approx(np.expm1(-0.3), abs=0.05)  # priced too low
    whole = together(rows, 0.06, np.random.default_rng(1))[0]
    assert whole.worst_significant == abs(rows[0].error) == whole.errors.worst
    assert whole.noise.worst < 0.08


def test_runs_that_differ_by_more_than_their_noise_are_told() -> None:
    cells, true = measured(np.random.default_rng(0), runs=3)
    surer = replace(cells, repeat_sd=cells.repeat_sd / 4)
    assert between_runs(surer, true) == pytest.approx(4 * between_runs(cells, true))
    alone = cells.take(cells.run == "0")
    assert np.isnan(between_runs(alone, true[: len(alone)]))


def test_a_better_measured_run_weighs_more() -> None:
    cells, true = measured(np.random.default_rng(0), runs=2)
    sure = cells.run == "1"
    times = np.where(sure, true, 2.0 * true)
    rows = cell_errors(replace(cells, step_s=times, repeat_sd=np.where(sure, 0.001, 1.0)), true)
    assert max(abs(row.error) for row in rows) < 1e-4


def test_parts_tell_launched_iterations_from_captured_ones() -> None:
    cells = synthetic(np.random.default_rng(0))
    parts, launched = parts_of(cells), cells.as_bill().eager_layers > 0
    assert launched.any()
    for part, eager, kind in zip(parts.tolist(), launched, cells.kind, strict=True):
        assert part.endswith(", launched") == bool(eager)
        assert part.startswith(str(kind))
    renamed = replace(cells, cell=np.array(["packed:" + c for c in cells.cell]))
    assert {p.split(",")[0] for p in parts_of(renamed).tolist()} == {"packed"}
