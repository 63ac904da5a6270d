"""Decodes soon after prefill take longer, on two models alike, and an account of what they owe tells by how much (suite `duty`)."""

import csv
from importlib.resources import files

import numpy as np
import pytest

from calibrate.served.owed import MODELS, NONE, OWED, OWED_MOST_S, PAID, fit, main, measured, missed_s

FOLDER = files("scenarios").joinpath("data/measured/h100")


@pytest.fixture(scope="module")
def rows():
    return {model: measured(model) for model in MODELS}


def after(rows, chunk):
    """Median over sequences with chunks of so many tokens: seconds late, by decodes since prefill."""
    seen = [row.seen() for row in rows if f"+{chunk} " in row.label]
    return [float(np.median([one[since][0] for one in seen if since in one])) for since in (1, 2, 3)]


@pytest.mark.parametrize("model", MODELS)
def test_the_longer_the_chunk_the_later_the_decodes_and_the_next_ones_less(rows, model):
    short, long = after(rows[model], 512), after(rows[model], 2048)
    assert 0.4e-3 < long[0] < 1.0e-3
    assert long[0] > 1.5 * long[1] > 1.5 * long[2]
    assert -0.1e-3 < short[0] < 0.5 * long[0]


@pytest.mark.parametrize("model", MODELS)
def test_the_clock_is_lower_between_long_chunks_than_before_them(model):
    with FOLDER.joinpath(f"duty_{model}.csv").open(encoding="utf-8") as lines:
        (place,) = [i for i, row in enumerate(csv.DictReader(lines)) if row["label"] == "duty 48x768+2048 every 2"]
    with FOLDER.joinpath(f"duty_{model}.readings.csv").open(encoding="utf-8") as lines:
        seen = [(float(r["reading_s"]), float(r["sm_mhz"])) for r in csv.DictReader(lines) if r["reading_sequence_index"] == str(place)]
    at_s, clock = np.array(seen).T
    assert np.median(clock[(at_s > 0.2) & (at_s < 0.5)]) > 1950
    assert np.median(clock[(at_s > 1.2) & (at_s < 2.0)]) < 1800


def test_an_account_of_one_model_holds_of_the_other(rows):
    """It leaves less than six tenths of what is seen without one, of the model that it was learnt on and of the other."""
    for learnt_on in MODELS:
        account = fit(rows[learnt_on])
        for model in MODELS:
            assert missed_s(rows[model], account) < 0.6 * missed_s(rows[model], NONE), (learnt_on, model)


def test_the_account_of_both_is_that_of_the_record_and_within_the_grid_that_it_was_sought_in(rows):
    account = fit([row for model in MODELS for row in rows[model]])
    assert 0.020 <= account.owed <= 0.0325
    assert 1.1e-3 <= account.most_s <= 1.6e-3
    assert 0.4 <= account.paid <= 0.5
    left = [1e6 * float(missed_s(rows[model], each)) for model in MODELS for each in (account, NONE)]
    assert left == pytest.approx([78, 200, 120, 263], rel=0.05)
    for value, grid in zip(account, (OWED, OWED_MOST_S, PAID), strict=True):
        assert grid[0] < value < grid[-1]


def test_the_command_prints_what_was_learnt_and_what_is_left(rows, capsys):
    main()
    text = capsys.readouterr().out
    account = fit([row for model in MODELS for row in rows[model]])
    assert f"both           {account.owed:6.4f} {1e3 * account.most_s:5.1f} ms {account.paid:6.2f}" in text
    assert all(f"{model}: microseconds late" in text for model in MODELS)
