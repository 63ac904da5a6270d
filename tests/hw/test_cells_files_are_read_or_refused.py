"""A cells file gives the grid its cells; a bad one is refused by name, and cells an engine cannot take are left out."""

import json
from types import SimpleNamespace

import pytest

from hw.cells import Cell, read_cells
from hw.suites.engine_grid import requested_cells
from sim.errors import UsageError
from simctl.campaign.design_cells import write_cells
from tests.cli import run

CELLS = [Cell("decode", (128,) * 3), Cell("prefill", (), ((0, 512),)), Cell("mixed", (64, 64), ((4096, 256),)), Cell("decode", (90_000,))]
LIMITS = {"token_budget": 2048, "max_context": 32768, "max_seqs": 16}


def test_what_a_design_writes_is_read_back_whole(tmp_path):
    write_cells(tmp_path / "c.json", "qwen2.5-7b", CELLS, "a question?")
    assert read_cells(tmp_path / "c.json") == ("qwen2.5-7b", CELLS)


def test_cells_beyond_the_engines_limits_are_left_out_and_named(tmp_path, capsys):
    write_cells(tmp_path / "c.json", "qwen2.5-7b", CELLS, "")
    job = SimpleNamespace(cells=str(tmp_path / "c.json"), stem="grid")
    assert requested_cells(job, LIMITS | {"fits": lambda _: True}) == CELLS[:3]
    assert "decode:1x90000 does not fit" in capsys.readouterr().err
    with pytest.raises(UsageError, match="none of its 4 cells fits"):
        requested_cells(job, LIMITS | {"fits": lambda _: False})


def spoilt(**change):
    return json.dumps({"schema": "simctl-cells/1", "cells": [{"kind": "decode", "contexts": [128]}]} | change)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[]", "not a cells file"),
        (spoilt(schema="x"), "not a cells file"),
        (spoilt(cells=[]), "needs a list of 1 to"),
        (spoilt(model=3), "model: needs a name"),
        (spoilt(cells=[{"kind": "verify", "contexts": [1]}]), r"cells\[0\]: kind is none of"),
        (spoilt(cells=[{"kind": "decode", "contexts": [-1]}]), r"cells\[0\]: contexts"),
        (spoilt(cells=[{"kind": "decode", "contexts": [True]}]), r"cells\[0\]: contexts"),
        (spoilt(cells=[{"kind": "prefill", "chunks": [[0]]}]), r"cells\[0\]: chunks"),
        (spoilt(cells=[{"kind": "packed", "chunks": [[0, 5], [0, 6]]}]), "must be equal"),
        (spoilt(cells=[{"kind": "decode"}]), "an empty iteration"),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path, text, says):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=says):
        read_cells(path)


def test_cells_are_for_suites_of_cells_alone(tmp_path):
    write_cells(tmp_path / "c.json", "qwen2.5-7b", CELLS, "")
    said = run("measure", "--hw", "cpu", "--suite", "served", "--cells", str(tmp_path / "c.json"), "-o", str(tmp_path))
    assert said.code == 2
    assert "--cells is for the suite engine-grid or profile, alone" in said.stderr
