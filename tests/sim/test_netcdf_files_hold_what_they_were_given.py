"""What goes into a netCDF file comes out of it, in 0.7 of the bytes that h5netcdf writes of many small variables."""

import io

import h5netcdf
import numpy as np
import pytest
import xarray as xr
from xarray.backends import H5NetCDFStore

from sim.netcdf import netcdf_content


def _read(content: memoryview, group: str | None = None) -> xr.Dataset:
    with xr.open_dataset(io.BytesIO(content), group=group, engine="h5netcdf") as opened:
        return opened.load()


@pytest.mark.parametrize(
    "dataset",
    [
        xr.Dataset({"a": ("x", [1.0, np.nan], {"units": "s", "long_name": "Zeit in µs", "empty": ""}), "n": ((), 3)}),
        xr.Dataset({"a": ("x", ["", "größer"]), "b": (("x", "y"), [["p"], ["longer"]]), "ok": ("x", [True, False])}),
        xr.Dataset({"a": (("x", "kind"), np.eye(2, dtype="f4"))}, {"kind": ["one", "other"], "x": [3, 1], "label": ("x", [0.5, 2.0])}),
        xr.Dataset({"a": ("x", np.zeros(0)), "t": ("x", np.array([], dtype=object))}, attrs={"long": "x" * 100_000, "n": 1, "r": 0.5}),
    ],
    ids=["units", "texts", "coordinates", "empty"],
)
def test_a_dataset_comes_back(dataset: xr.Dataset) -> None:
    content = netcdf_content({"/": xr.Dataset(attrs={"a": "b"}), "part": dataset})
    assert _read(content).attrs == {"a": "b"}
    back = _read(content, "part")
    assert set(back.coords) == set(dataset.coords)
    for name, values in dataset.variables.items():
        assert back[name].dims == values.dims
        np.testing.assert_array_equal(back[name].values, values.values)
        assert back[name].attrs == values.attrs
    assert back.attrs == dataset.attrs


def test_many_small_variables_take_fewer_bytes() -> None:
    data = xr.Dataset({f"v{i}": ("x", [1.0, 2.0], {"long_name": f"variable {i}", "units": "s"}) for i in range(40)})
    buffer = io.BytesIO()
    with h5netcdf.File(buffer, "w") as file:
        data.dump_to_store(H5NetCDFStore(file))
    assert len(netcdf_content({"/": data})) < 0.7 * len(buffer.getbuffer())
