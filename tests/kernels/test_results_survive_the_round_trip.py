import csv
import math

import pytest
import xarray as xr

from kernels import bench, results


def rows() -> list[results.Row]:
    return [
        results.row("dense", "dense_decode", "paged", dtype="bfloat16", batch=8, context=2**20, median=5.5e-3, moved=2.0**34, note="a, b"),
        results.row("gdn", "gdn_decode", "f32_état", batch=128, error_before=1e-7),
    ]


def test_netcdf_is_read_by_xarray(tmp_path) -> None:
    results.write(rows(), {"gpu": "A GPU", "date": "2026-01-01"}, tmp_path, "t")
    with xr.open_dataset(tmp_path / "t.nc", engine="scipy") as table:
        assert dict(table.sizes)["cell"] == 2
        assert table.attrs == {"gpu": "A GPU", "date": "2026-01-01"}
        assert [str(v) for v in table["variant"].values] == ["paged", "f32_état"]
        assert table["context"].values.tolist() == [2**20, 0]
        assert float(table["median"][0]) == 5.5e-3
        assert math.isnan(float(table["median"][1]))
        assert table["moved"].attrs["units"] == "bytes"
        assert set(table.data_vars) == set(results.COLUMNS)


def test_csv_holds_the_same_rows(tmp_path) -> None:
    results.write(rows(), {"gpu": "A GPU"}, tmp_path, "t")
    lines = (tmp_path / "t.csv").read_text().splitlines()
    assert lines[0] == "# gpu: A GPU"
    read = list(csv.DictReader(lines[1:]))
    assert [r["note"] for r in read] == ["a, b", ""]
    assert float(read[0]["median"]) == 5.5e-3
    assert not list(tmp_path.glob("*.tmp"))


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(ValueError, match="speed"):
        results.row("dense", "dense_decode", "paged", speed=1.0)


def test_a_missed_gate_of_our_own_is_a_failure_and_of_others_is_not() -> None:
    mine = results.row("dense", "dense_decode", "paged", note="failed its gate: not timed")
    theirs = results.row("dense", "dense_decode", "sdpa_math_gqa", note="failed its gate: not timed")
    wrong = results.row("sparse", "select", "minmax", note="selection is not the top k of its scores")
    assert bench.failed([mine, theirs, wrong]) == [mine, wrong]
