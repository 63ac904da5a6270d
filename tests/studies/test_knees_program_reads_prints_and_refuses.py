"""`python -m studies.knees` analyses a CSV and our own grids, and refuses malformed input by line."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from sim.closed_form.knee import eta
from sim.cost.batch import decode_batch
from sim.cost.step_time import step_time_s
from sim.cost.work import iteration_work
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.specs.precision import Precision
from studies.knees.__main__ import main
from tests.calibrate.grids import write_grid
from tests.calibrate.steps import TRUE_RATES
from tests.cli import caught

HEADER = "model,gpu,context_tokens,batch,step_s,weight_bytes,kv_bytes,memory_bytes\n"


def write(path, rows):
    path.write_text(HEADER + "".join(",".join(map(str, row)) + "\n" for row in rows))
    return str(path)


def rows(alpha=1.0):
    for model, weight in (("a", 8e9), ("b", 16e9)):
        for context in (4096, 16384):
            kv = context * 1e5
            for batch in (1, 2, 4, 8, 16, 32):
                step = 0.01 / eta(batch, alpha * kv / weight)
                yield (model, "H100", context, batch, step, weight, kv, 80e9)


def test_prints_tables_of_a_measured_grid(tmp_path):
    code, out, err = caught(main, write(tmp_path / "grid.csv", rows()), "--resamples", "200")
    assert (code, err) == (0, "")
    assert "knees at tau 0.65 (n = 4 curves)" in out
    assert "Ck/W closed-form" in out


def test_json_holds_the_same_knees_and_no_nan(tmp_path):
    code, out, _ = caught(main, write(tmp_path / "grid.csv", rows(alpha=0.2)), "--json", "--resamples", "200")
    assert code == 0
    result = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert len(result["curves"]) == 4
    assert result["alpha"]["H100"] == pytest.approx(0.2, rel=0.15)


def test_the_published_study_recomputes():
    """As the documentation shows it: that the command prints just this is a test of its console blocks (tests/docs)."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "replication.md").read_text(encoding="utf-8")
    ((out),) = re.findall(r"```console slow\n\$ python -m studies\.knees\.recompute\n(.*?)```", page, re.DOTALL)
    assert out.count(" ok ") == 6
    assert out.count("MISS") == 1
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (("a", "H100", 4096, 2, "nan", 8e9, 1e9, 80e9), ":3: step_s must be positive"),
        (("a", "H100", 4096, 2, -1, 8e9, 1e9, 80e9), ":3: step_s must be positive"),
        (("a", "H100", 4096, 2, "x", 8e9, 1e9, 80e9), ":3: step_s is not a number"),
        (("a", "H100", 4096, 2, 0.1, 8e9, "", 80e9), ":3: give all of weight_bytes"),
        (("a", "", 4096, 2, 0.1, 8e9, 1e9, 80e9), ":3: gpu is missing"),
        (("a", "H100", 1e300, 2, 0.1, 8e9, 1e9, 80e9), ":3: context_tokens is beyond any model's"),
    ],
)
def test_a_malformed_line_is_named_on_one_line_of_stderr(tmp_path, bad, says):
    good = ("a", "H100", 4096, 1, 0.1, 8e9, 1e9, 80e9)
    code, out, err = caught(main, write(tmp_path / "bad.csv", [good, bad]))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err


def test_a_curve_without_batch_one_and_a_missing_file_are_refused(tmp_path):
    lone = [("a", "H100", 4096, b, 0.1, 8e9, 1e9, 80e9) for b in (2, 4)]
    code, _, err = caught(main, write(tmp_path / "lone.csv", lone))
    assert code == 2
    assert "needs batch 1" in err
    assert caught(main, write(tmp_path / "empty.csv", []))[0] == 2
    assert caught(main, str(tmp_path / "absent.csv"))[0] == 1


@pytest.mark.parametrize("spoilt", [{1: 1e3}, {16: 1e-3}, {16: 1e3, 32: 1e3}, {8: 1e6}])
def test_a_curve_in_several_units_is_refused(tmp_path, spoilt):
    mixed = [(*row[:4], row[4] * spoilt.get(row[3], 1.0), *row[5:]) for row in rows()]
    code, out, err = caught(main, write(tmp_path / "mixed.csv", mixed))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"studies.knees: {tmp_path}/mixed.csv: a at 4096 tokens: a step of batch ")
    assert err.endswith("mixed units?\n")


def test_steps_that_all_take_as_long_are_refused(tmp_path):
    code, out, err = caught(main, write(tmp_path / "same.csv", [(*row[:4], 0.01, *row[5:]) for row in rows()]))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "all step times are equal: zero variance" in err


def test_our_own_grids_are_read(tmp_path):
    grid = write_grid(tmp_path / "engine-grid_x.nc", np.random.default_rng(0), sigma=1e-6)
    code, out, _ = caught(main, str(grid), "--json", "--resamples", "200")
    assert code == 0
    rows = {row["curve"]["cell"]["context_tokens"]: row for row in json.loads(out)["curves"]}
    assert sorted(rows) == [128, 2048, 16384]
    model, batches = get_model("Qwen2.5-7B"), (1.0, 8.0, 32.0, 128.0)
    times = [
        step_time_s(iteration_work(model, decode_batch(model, b, 2048.0), Precision(), gpu=get_gpu("H100")), TRUE_RATES) for b in batches
    ]
    alone = times[0]
    assert rows[2048]["curve"]["etas"] == pytest.approx([alone / t for t in times], rel=1e-3)


def test_a_netcdf_that_is_no_measurement_is_refused(tmp_path):
    path = tmp_path / "x.nc"
    path.write_text("not one")
    code, _, err = caught(main, str(path))
    assert (code, err.count("\n")) == (2, 1)
    assert "not a netCDF measurement" in err


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("step_s_median", 0.0, "cell 2: step_s_median must be positive and finite: 0"),
        ("step_s_median", -0.1, "cell 2: step_s_median must be positive and finite: -0.1"),
        ("step_s_median", np.nan, "cell 2: step_s_median must be positive and finite: nan"),
        ("batch", np.inf, "cell 2: batch must be positive and finite: inf"),
        ("context_tokens", np.nan, "cell 2: context_tokens must be positive and finite: nan"),
        ("context_tokens", "many", "context_tokens not in numbers"),
    ],
)
def test_a_grid_with_a_cell_that_cannot_be_is_refused(tmp_path, name, value, says):
    path = write_grid(tmp_path / "engine-grid_x.nc", np.random.default_rng(0))
    with xr.open_dataset(path) as opened:
        data = opened.load()
    column = data[name].astype(object if isinstance(value, str) else float)
    column[1] = value
    data[name] = column.astype(str) if isinstance(value, str) else column
    data.to_netcdf(path, engine="h5netcdf")
    code, out, err = caught(main, str(path))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert says in err
