"""A run whose figures lie where few other seeds do says so; one among the others does not."""

import numpy as np
import pytest

from sim.results.metrics import summarise
from sim.results.run_files import RUN_FILE, read_run_dataset
from simctl.report.of_run import part_of
from tests.report.results import results


@pytest.mark.parametrize(("factor", "named"), [(1.0, False), (2.0, True), (0.5, True)])
def test_the_note_names_the_figures_outside(factor, named):
    record, dataset = read_run_dataset(results()["run"] / RUN_FILE)
    summary = summarise(record)
    figures = [str(name) for name in dataset["repeat_figure"].values]
    around = np.exp(0.02 * np.random.default_rng(0).standard_normal((20, 1)))
    values = factor * around * [summary[name] for name in figures]
    part = part_of(record, dataset.assign(repeat_value=(dataset["repeat_value"].dims, values)))
    notes = [note for note in part.notes if "Another --seed" in note]
    assert len(notes) == named
    assert all("Median TTFT" in note and "Failed requests" not in note for note in notes)
