"""The table of published cells: every cell is askable, and a figure is inside where either interval of its answer reaches."""

import math
import shlex

import pytest

from sim.errors import SimctlError
from studies.field import by, cells, compared, interval, narrowed, tables

CELL = {"cell": "a", "ask": "--gpu H100 --dtype fp8 --num-prompts 2", "measured": {"mean_tpot_ms": 10, "duration": 4}}
ANSWER = {
    "mean_tpot_ms": 8.0,
    "duration": 5.0,
    "run_noise_90": {"mean_tpot_ms": [7.9, 8.2], "duration": [4.9, 5.1]},
    "rates_90": {"mean_tpot_ms": [7.5, 10.5]},
}


def test_every_cell_has_a_name_of_its_own_a_source_a_card_and_something_measured():
    found = cells()
    assert len({cell["cell"] for cell in found}) == len(found)
    for cell in found:
        assert cell["source"]
        assert "--gpu" in shlex.split(cell["ask"])
        assert ("--model" in cell["ask"]) != ("config" in cell)
        assert all(value > 0 for value in cell["measured"].values())


def test_error_and_inside_by_hand():
    tpot, duration = compared(CELL, [ANSWER])
    assert (tpot.card, tpot.engine, tpot.weights) == ("H100", "vllm", "fp8")
    assert tpot.error == pytest.approx(-0.2)
    assert tpot.inside
    assert not duration.inside
    assert by([tpot, duration], lambda row: row.card) == [("H100", 2, pytest.approx(0.225), 1)]


def test_what_a_source_leaves_open_is_held_by_the_intervals_of_each_way():
    other = ANSWER | {"mean_tpot_ms": 18.0, "run_noise_90": {"mean_tpot_ms": [17.9, 18.1]}, "rates_90": {"mean_tpot_ms": [16.0, 20.0]}}
    row, _ = compared(CELL, [ANSWER, other])
    assert (row.predicted, row.low, row.high) == (pytest.approx(12.0), pytest.approx(7.5, rel=0.01), pytest.approx(20.0, rel=0.01))
    first = row.as_asked
    assert (first.predicted, first.low, first.high) == (8.0, pytest.approx(7.5, rel=0.01), pytest.approx(10.5, rel=0.01))
    assert "| all, as asked first | 1 | 20 | 1 |" in tables([row], ()).splitlines()
    assert "first way" not in tables(compared(CELL, [ANSWER]), ())
    assert [
        cell["cell"] for cell in cells() if "gpt-oss" in cell["cell"] and "--engine-version" not in cell["ask"] + str(cell.get("also"))
    ] == []


def test_narrower_intervals_of_gpus_never_stepped_hold_fewer_figures():
    """An interval of 4 to 16 about 8, half as wide in logarithms: 5.7 to 11.3."""
    row, home = (
        compared({**CELL, "ask": f"--gpu {gpu}"}, [ANSWER])[0]._replace(measured=6.0, low=4.0, high=16.0) for gpu in ("A10", "H100")
    )
    half = narrowed(row, 0.5)
    assert (half.low, half.high) == (pytest.approx(2**2.5), pytest.approx(2**3.5))
    lines = [line for line in tables([row, home], ()).splitlines() if "never stepped" in line]
    assert [line.split("|")[-2].strip() for line in lines] == ["1", "1", "1", "1"]
    outer = [row._replace(measured=4.5), home]
    assert [line.split("|")[-2].strip() for line in tables(outer, ()).splitlines() if "never stepped" in line] == ["1", "0", "0", "0"]


def test_an_answer_without_an_interval_holds_nothing():
    low, high = interval({}, "duration")
    assert math.isnan(low)
    assert math.isnan(high)


def test_words_choose_cells_or_are_refused():
    assert {cell["cell"] for cell in cells(["gb10"])} == {"gb10-8b-nvfp4", "gb10-8b-fp8", "gb10-gpt-oss-120b"}
    with pytest.raises(SimctlError, match="no cell"):
        cells(["no-such"])
