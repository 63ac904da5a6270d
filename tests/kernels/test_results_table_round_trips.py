import math

import pytest
import xarray as xr

from kernels import bench, results


def rows() -> list[results.Row]:
    return [
        results.row("dense", "dense_decode", "paged", dtype="bfloat16", batch=8, context=2**20, median=5.5e-3, moved=2.0**34, note="a, b"),
        results.row("gdn", "gdn_decode", "f32_état", batch=128, error_before=1e-7),
    ]


def test_csv(tmp_path) -> None:
    results.write(rows(), {"gpu": "A GPU", "date": "2026-01-01"}, tmp_path / "new" / "t.csv")
    attributes, read = results.read(tmp_path / "new" / "t.csv")
    assert attributes == {"gpu": "A GPU", "date": "2026-01-01"}
    assert [r["note"] for r in read] == ["a, b", ""]
    assert (read[0]["median"], read[0]["context"]) == (5.5e-3, 2**20)
    assert math.isnan(read[1]["median"])
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["t.csv"]


def test_netcdf_with_the_same_variables(tmp_path) -> None:
    columns = {name: ("cell", [r[name] for r in rows()]) for name in results.COLUMNS}
    xr.Dataset(columns, attrs={"gpu": "A GPU"}).to_netcdf(tmp_path / "t.nc")
    attributes, read = results.read(tmp_path / "t.nc")
    assert attributes["gpu"] == "A GPU"
    assert [r["variant"] for r in read] == ["paged", "f32_état"]
    assert read[0]["moved"] == 2.0**34
    assert set(read[0]) == set(results.COLUMNS)


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(ValueError, match="speed"):
        results.row("dense", "dense_decode", "paged", speed=1.0)


def test_a_failed_gate_of_a_kernel_counts_and_one_of_a_baseline_does_not() -> None:
    mine = results.row("dense", "dense_decode", "paged", note="failed its gate: not timed")
    theirs = results.row("dense", "dense_decode", "sdpa_flash_gqa", note="did not run: no such backend")
    wrong = results.row("sparse", "select", "minmax", note="failed its gate: selection is not the top k of its scores")
    assert bench.failed([mine, theirs, wrong]) == [mine, wrong]
