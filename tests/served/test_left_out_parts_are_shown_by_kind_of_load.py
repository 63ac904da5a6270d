"""A pool that holds 90 % may hide a kind of load that holds none: each is shown, and marked where its interval is too narrow or wide."""

from types import SimpleNamespace

import numpy as np
import pytest

from calibrate.served.left_out import LONG_TOKENS, LeftOut, kind_of_load
from calibrate.served.scores import Score
from simctl.text.validate_text import left_out_cells, left_out_cells_table


def of(load, covered, requests=100, run="run", right=(0.9,)):
    score = Score("x", "e2el_s", requests, 0.02, 0.05, 0.0, covered, 0.02)
    return LeftOut("model", run, (score,), load, right={"e2el_s": np.array(right)})


def test_a_kind_of_load_that_holds_nothing_is_marked():
    found = [of("low", 0.99, 900), of("closed", 0.10), of("burst", 0.80), of("burst", 1.0)]
    cells = {cell["load"]: cell for cell in left_out_cells(found)}
    assert list(cells) == ["low", "closed", "burst"]
    assert cells["burst"]["coverage"] == pytest.approx(0.9)
    assert cells["burst"]["loads"] == 2
    text = left_out_cells_table(found)
    marks = {line.split()[1]: line.split()[-1] for line in text.splitlines()[1:4]}
    assert marks == {"low": "wide", "closed": "NARROW", "burst": "90-90%"}
    assert text.splitlines()[-1] == "E2EL: 1 of 3 cells hold 85% to 97% (3 to 3 would if right), least 10%"
    assert max(map(len, text.splitlines())) <= 80


def test_a_cell_of_few_servers_shows_little():
    """Of right predictions nine servers in ten lie inside with all their requests: one server is all or none, fifty are nearly 0.9."""
    whole = np.repeat([1.0, 0.0], [9, 1])
    (one,), (fifty,) = (left_out_cells([of("low", 1.0, run=f"{i}", right=whole) for i in range(n)]) for n in (1, 50))
    assert (one["servers"], one["right_low"], one["right_high"]) == (1, 0.0, 1.0)
    assert fifty["servers"] == 50
    assert 0.75 < fifty["right_low"] < 0.9 < fifty["right_high"] < 1.0


def load(kind="open", rate=2.0, tokens=1000.0, content=()):
    return SimpleNamespace(kind=kind, rate_per_s=rate, prompt_tokens=np.full(5, tokens), content=content)


def test_a_load_is_of_the_kind_that_matters_most():
    run = SimpleNamespace(experiments=[load(), load(rate=16.0), load("closed", np.nan)])
    kinds = {
        "low": load(),
        "high": load(rate=16.0),
        "closed": load("closed", np.nan),
        "burst": load("burst", np.nan),
        "long": load(tokens=float(LONG_TOKENS)),
        "prefix": load("sessions", tokens=float(LONG_TOKENS)),
    }
    assert [kind_of_load(each, run) for each in kinds.values()] == list(kinds)
