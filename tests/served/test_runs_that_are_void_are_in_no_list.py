"""A served file whose every experiment is void is in no list of runs to learn from or to check."""

import numpy as np
import xarray as xr

from calibrate import measured_files


def test_a_file_of_void_experiments_alone_is_left_out(tmp_path, monkeypatch):
    for place, void in {"h100/served_a.nc": ["", "a stream failed"], "validation/h100_served_b.nc": ["out of time"]}.items():
        path = tmp_path / place
        path.parent.mkdir()
        xr.Dataset({"void": ("experiment", np.array(void, dtype=object))}).to_netcdf(path, engine="h5netcdf")
    monkeypatch.setattr(measured_files, "_root", lambda: tmp_path)
    assert [path.name for path in measured_files.validation_measurements()] == ["h100_served_b.nc"]
    assert [path.name for path in measured_files.served_files()] == ["served_a.nc"]
