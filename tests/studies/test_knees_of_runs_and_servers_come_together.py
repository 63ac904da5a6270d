"""Runs of one cell are one curve, grids without a curve are left out and said so, and served ladders stand beside static knees."""

import json
from dataclasses import replace

import numpy as np

from sim.closed_form.knee import Knee
from studies.knees.__main__ import main
from studies.knees.curves import pooled
from studies.knees.served_knees import against_static, snapped
from tests.calibrate.grids import write_grid
from tests.cli import caught
from tests.studies.curves import curve


def test_a_cell_measured_by_three_runs_counts_once_with_the_middle_efficiency():
    runs = [replace(curve(), etas=(1.0, 0.9 + shift, 0.7, 0.5), batches=(1.0, 2.0, 4.0, 8.0)) for shift in (-0.02, 0.0, 0.04)]
    runs.append(curve(context=4096))
    first, second = pooled(runs)
    assert (first.cell.context_tokens, first.runs) == (4096, 1)
    assert (second.runs, second.etas) == (3, (1.0, 0.9, 0.7, 0.5))


def test_two_files_of_one_grid_give_its_curves_once(tmp_path):
    paths = [str(write_grid(tmp_path / f"engine-grid_{i}.nc", np.random.default_rng(i), sigma=0.01)) for i in range(2)]
    code, out, _ = caught(main, *paths, "--json", "--resamples", "200")
    assert code == 0
    assert [(row["curve"]["cell"]["context_tokens"], row["curve"]["runs"]) for row in json.loads(out)["curves"]] == [
        (128, 2), (2048, 2), (16384, 2),
    ]  # fmt: skip


def test_packaged_names_are_found_and_a_grid_without_a_curve_is_left_out_aloud():
    code, out, err = caught(main, "h100/engine-grid_llama3.1-8b_5.nc", "h100/engine-grid_qwen3-14b.nc", "--resamples", "200")
    assert code == 0
    assert "knees at tau 0.65 (n = 7 curves)" in out
    assert err == "engine-grid_llama3.1-8b_5.nc: no decodes of one context at batch 1 and at another; left out\n"
    code, _, err = caught(main, "h100/engine-grid_llama3.1-8b_5.nc")
    assert code == 2
    assert "no efficiency curve: needs decodes of one context at batch 1 and at another" in err


def test_a_served_ladder_gives_a_served_knee_beside_the_static_one():
    code, out, _ = caught(main, "h100/served_qwen2.5-7b.nc", "h100/engine-grid_qwen2.5-7b.nc", "--json", "--resamples", "200")
    assert code == 0
    result = json.loads(out)
    (row,) = result["served"]
    assert row["curve"]["batches"] == [1, 2, 4, 8, 16, 32, 64, 128]
    etas = row["curve"]["etas"]
    assert row["knee"] == next(b for b, eta in zip(row["curve"]["batches"], etas, strict=True) if eta < 0.65)
    static = next(r for r in result["curves"] if r["curve"]["cell"]["context_tokens"] == 2048)["continuous"][0]
    assert row["static"] == 2 ** np.ceil(np.log2(static))
    assert row["steps"] == np.log2(row["knee"] / row["static"])


def test_a_static_knee_is_snapped_to_the_served_rungs_and_left_open_where_its_ladder_is_shorter():
    assert snapped(Knee(33.0, False), (1, 16, 32, 64)) == 64
    assert snapped(Knee(32.0, False), (1, 16, 32, 64)) == 32
    assert snapped(Knee(65.0, False), (1, 16, 32, 64)) is None
    assert snapped(Knee(64.0, True), (1, 16, 32, 64)) is None
    served, short = curve(ladder=(1, 2, 4, 8, 16, 32)), curve(alpha=0.1, ladder=(1, 2, 4))
    (row,) = against_static([served], [short], 0.65)
    assert (row.knee is not None, row.static, row.steps) == (True, None, None)


def test_no_line_is_wider_than_a_terminal():
    code, out, _ = caught(main, "h100/engine-grid_qwen3-coder-30b-a3b.nc", "h200/engine-grid_qwen2.5-7b_tp2.nc", "--resamples", "200")
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
