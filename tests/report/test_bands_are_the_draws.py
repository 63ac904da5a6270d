"""The band of a latency distribution is what the run's own draws of the rates say, and its line is the run's own requests."""

from types import SimpleNamespace

import numpy as np
import pytest

from sim.results.metrics import LEVELS, PER_REQUEST, latency_quantiles, request_latencies_ms
from sim.results.run_files import read_run_dataset
from simctl.report.inputs import part_of
from tests.report.results import results


def rows_of(name):
    picture = next(each for each in part_of(results()["run"]).pictures if each.name == name)
    return {round(row["y"], 6): row for row in picture.spec["data"]["values"]}


@pytest.mark.parametrize("name", PER_REQUEST)
def test_line_and_band(name):
    record, dataset = read_run_dataset(results()["run"])
    rows, place = rows_of(name), PER_REQUEST.index(name)
    values = request_latencies_ms(record)[name]
    low, high = np.quantile(dataset["draw_quantile_ms"].values[:, place], (0.05, 0.95), axis=0)
    for i, level in enumerate(LEVELS):
        row = rows[round(100 * level, 6)]
        assert row["x"] == pytest.approx(np.nanquantile(values, level))
        assert (row["low"], row["high"]) == pytest.approx((low[i], high[i]))
    assert rows[100.0]["x"] == np.nanmax(values)


def test_quantiles_of_every_draw_are_kept():
    _, dataset = read_run_dataset(results()["run"])
    assert dataset["draw_quantile_ms"].shape == (6, len(PER_REQUEST), len(LEVELS))
    columns = list(dataset["draw_figure"].values)
    medians = dataset["draw_value"].values[:, columns.index("median_e2el_ms")]
    assert dataset["draw_quantile_ms"].values[:, 2, LEVELS.index(0.5)] == pytest.approx(medians)


def test_by_hand():
    columns = {name: np.zeros(3) for name in ("arrival_s", "first_token_s", "finish_s")} | {"generated_tokens": np.array([1, 1, 1])}
    columns["first_token_s"] = np.array([0.1, 0.2, 0.3])
    columns["finish_s"] = np.array([1.0, 2.0, 3.0])
    found = latency_quantiles(SimpleNamespace(requests=columns))
    assert found[0, LEVELS.index(0.5)] == pytest.approx(200)
    assert found[2, LEVELS.index(0.5)] == pytest.approx(2000)
    assert np.isnan(found[1]).all()  # one token each: none has a TPOT
