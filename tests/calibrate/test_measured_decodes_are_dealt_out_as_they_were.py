"""Contexts of a grid's unequal decodes are known one by one where the file or one beside it says so; else by mean and deviation."""

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from calibrate.measurement import open_measurement
from calibrate.steps.decodes import LOG_UNIFORM, asked_of, contexts_of, with_idle
from hw.cells import ragged_cells
from sim.bill import iteration_bill, mixed_shape
from sim.dealing import idle_keys, idle_when_dealt
from sim.precision import Precision
from tests.price.shapes import LATENT, QWEN_7B

MEASURED = Path(str(files("scenarios") / "data" / "measured"))
TOKEN = 57344  # KV bytes of QWEN_7B


def idle(contexts, apart=0.0, model=QWEN_7B):
    return with_idle(
        iteration_bill(model, mixed_shape(model, contexts, []), Precision()), model, Precision(), 1, contexts, apart
    ).idle_kv_bytes


def test_ragged_cells_are_drawn_from_the_seed_as_the_grid_drew_them(tmp_path):
    for seed in (0, 7):
        drawn = asked_of(tmp_path / "grid.nc", {"seed": str(seed)})
        assert drawn == {cell.label: list(cell.contexts) for cell in ragged_cells(np.random.default_rng(seed))}
    assert asked_of(tmp_path / "grid.nc", {}) == {}


def test_cells_listed_beside_a_table_are_known(tmp_path):
    cells = [{"kind": "ragged", "contexts": [100, 300]}, {"kind": "decode", "contexts": [100, 100]}]
    (tmp_path / "some.cells.json").write_text(json.dumps({"schema": "simctl-cells/1", "cells": cells}))
    assert asked_of(tmp_path / "grid.nc", {}) == {"ragged:2ragged400": [100, 300]}


def test_known_contexts_are_dealt_out_as_they_were_and_ran_on():
    row = {"decode_seqs_median": 2.0, "label": "ragged:2ragged400", "kind": "ragged"}
    assert contexts_of(row, 210.0, {"ragged:2ragged400": [100, 300]}) == ([110.0, 310.0], 0.0)
    contexts = [110.0, 310.0] * 20
    assert idle(contexts) == pytest.approx(TOKEN * idle_when_dealt(contexts, 4))
    assert idle([1024.0] * 34) == pytest.approx(TOKEN * idle_when_dealt([1024.0] * 34, 4))


def test_others_are_expected_by_their_deviation():
    row = {"decode_seqs_median": 24.0, "label": "ragged:24ragged9", "kind": "ragged"}
    assert contexts_of(row | {"context_sd_tokens": 150.0}, 500.0, {}) == ([500.0] * 24, 150.0)
    assert contexts_of(row, 500.0, {}) == ([500.0] * 24, LOG_UNIFORM * 500.0)
    assert contexts_of(row | {"kind": "decode"}, 500.0, {}) == ([500.0] * 24, 0.0)
    assert idle([500.0] * 24, 150.0) == pytest.approx(TOKEN * idle_keys(4, 24, 12000.0, (24 * 150.0) ** 2))


def test_log_uniform_contexts_differ_by_so_much_of_their_mean():
    found = [np.std(c.contexts) / np.mean(c.contexts) for seed in range(40) for c in ragged_cells(np.random.default_rng(seed), (96,))]
    assert np.mean(found) == pytest.approx(LOG_UNIFORM, abs=3 * np.std(found) / np.sqrt(len(found)) + 0.02)


def test_models_without_full_context_attention_have_none():
    assert idle([500.0] * 24, 150.0, LATENT) == 0.0


def test_contexts_of_all_packaged_ragged_cells_are_known():
    seen = 0
    for path in sorted(MEASURED.rglob("engine-grid_*.nc")):
        data = open_measurement(path)
        asked = asked_of(path, data.attrs)
        labels = [str(label) for label in data["label"].values if str(label).startswith("ragged")]
        assert set(labels) <= set(asked), path
        seen += len(labels)
    assert seen > 100
