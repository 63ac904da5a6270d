"""Without a netCDF library, numpy writes the file: what xarray writes by itself is the reference."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from hw import netcdf3
from hw.artifact import load

MEASURED = sorted((Path(__file__).parents[2] / "scenarios" / "data" / "measured").glob("*/*.nc"))


def back(data: xr.Dataset, folder: Path) -> xr.Dataset:
    path = folder / "x.nc"
    path.write_bytes(netcdf3.content(data))
    with xr.open_dataset(path, engine="scipy") as opened:
        return opened.load()


@pytest.mark.parametrize(
    "path", [p for p in MEASURED if p.stem in ("floor", "served_qwen2.5-7b", "engine-grid_qwen3-14b")], ids=lambda p: p.stem
)
def test_measured_files_survive(path: Path, tmp_path: Path) -> None:
    with xr.open_dataset(path) as opened:
        data = opened.load()
    xr.testing.assert_equal(back(data, tmp_path), data)
    read = back(data, tmp_path)
    assert {k: str(v) for k, v in read.attrs.items()} == {k: str(v) for k, v in data.attrs.items()}
    assert {n: v.attrs for n, v in read.variables.items()} == {n: v.attrs for n, v in data.variables.items()}


@settings(max_examples=40)
@given(
    texts=st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=5), min_size=1, max_size=6),
    attribute=st.one_of(st.floats(allow_nan=False), st.integers(-(2**40), 2**40), st.text("aé√ ", min_size=1, max_size=7)),
    dtype=st.sampled_from(["f8", "f4", "i8", "i4", "i2", "i1", "bool", "u4"]),
)
def test_every_kind_of_value_survives(
    texts: list[str], attribute: float | int | str, dtype: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    numbers = np.arange(len(texts)).astype(dtype)
    data = xr.Dataset({"text": ("row", np.array(texts, dtype=object)), "number": ("row", numbers, {"units": "s"})}, attrs={"a": attribute})
    read = back(data, tmp_path_factory.mktemp("nc"))
    assert read.text.values.astype(str).tolist() == texts
    assert read.number.values.tolist() == numbers.astype(float).tolist()
    assert read.number.attrs == {"units": "s"}
    assert read.attrs["a"] == attribute


def test_large_integers_become_doubles_and_numbers_have_any_dimensions(tmp_path: Path) -> None:
    data = xr.Dataset({"bytes": ("row", np.array([2**40, 1]))})
    assert back(data, tmp_path).bytes.values.tolist() == [2.0**40, 1.0]
    square = xr.Dataset({"x": (("a", "b"), np.arange(6, dtype=np.int32).reshape(2, 3)), "y": (("b", "a"), np.ones((3, 2), np.float32))})
    xr.testing.assert_identical(back(square, tmp_path), square)


def test_what_the_format_does_not_hold_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^x: text of 2 dimensions"):
        netcdf3.content(xr.Dataset({"x": (("a", "b"), np.full((2, 2), "t", dtype=object))}))
    with pytest.raises(ValueError, match=r"^x: a number of 0 dimensions"):
        netcdf3.content(xr.Dataset({"x": ((), 1.0)}))
    with pytest.raises(ValueError, match="no complex128"):
        netcdf3.content(xr.Dataset({"x": ("a", np.zeros(2, dtype=complex))}))


def test_a_whole_suite_runs_with_nothing_but_numpy_xarray_and_click(tmp_path: Path) -> None:
    program = """
import importlib.abc, importlib.util, sys
absent = {"scipy", "yaml", "simpy", "h5netcdf", "h5py", "netCDF4", "pymc", "arviz", "matplotlib", "torch"}
class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name.split(".")[0] in absent else find(name, package)
import importlib, pkgutil
import hw
for module in pkgutil.walk_packages(hw.__path__, "hw."):
    importlib.import_module(module.name)
from hw.__main__ import main
main()
"""
    call = [sys.executable, "-c", program, "--hw", "cpu", "--suite", "floor", "-o", str(tmp_path)]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert load(tmp_path / "floor.nc", "floor").sizes["row"] >= 3
