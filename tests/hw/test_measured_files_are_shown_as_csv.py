"""A measurement file is shown as CSV by dimension, with every number as it was measured; what is none is refused in a line."""

import csv
import io
from pathlib import Path

import numpy as np
import pytest

from hw import show as program
from hw.artifact import load
from tests.cli import Result, caught

GRID = Path(__file__).parents[2] / "scenarios/data/measured/h100/engine-grid_qwen3-14b.nc"


def show(*argv: str) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["hw.show", *argv])
        return caught(lambda _: program.main())


@pytest.mark.parametrize("dim", ["cell", "iteration"])
def test_every_column_of_a_dimension_comes_back(dim: str) -> None:
    result = show(str(GRID), dim)
    assert (result.code, result.stderr) == (0, "")
    rows, data = list(csv.DictReader(io.StringIO(result.stdout))), load(GRID)
    assert len(rows) == data.sizes[dim]
    assert set(rows[0]) == {name for name, variable in data.variables.items() if variable.dims == (dim,)}
    for name in rows[0]:
        shown, kept = [row[name] for row in rows], data[name].values
        if kept.dtype.kind == "f":
            np.testing.assert_allclose([float(text or "nan") for text in shown], kept, rtol=5e-7)
        else:
            assert shown == [str(value) for value in kept.tolist()]


def test_a_file_of_one_dimension_needs_no_name_and_attributes_are_shown() -> None:
    floor = str(GRID.with_name("floor.nc"))
    assert show(floor).stdout.startswith("what,")
    assert "gpu_name: NVIDIA H100 80GB HBM3\n" in show(floor, "--attributes").stdout


def test_the_kernels_of_one_cell_of_a_profile_add_up_to_its_kinds() -> None:
    profile, cell = GRID.with_name("profile_llama3.1-8b.nc"), "mixed:32x1024+1x512@0"
    rows = list(csv.DictReader(io.StringIO(show(str(profile), "kernel", "--at", f"cell={cell}").stdout)))
    data = load(profile)
    (at,) = np.flatnonzero(data.label.values.astype(str) == cell)
    attention = sum(float(row["us"]) for row in rows if row["kernel_kind"] == "attention")
    assert attention == pytest.approx(float(data.attention_us[at]), rel=1e-4)


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        ((str(GRID),), "iteration, cell"),
        ((str(GRID), "request"), "'request'"),
        ((str(GRID), "cell", "--at", "iteration=-1"), "no such iteration"),
        ((str(GRID), "cell", "--at", "visit=1"), "no dimension 'visit'"),
        ((__file__,), "netCDF"),
        ((str(GRID.with_name("catalogue.products.csv")),), "netCDF"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line(argv: tuple[str, ...], named: str) -> None:
    result = show(*argv)
    assert (result.code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1
    assert named in result.stderr
