"""Every command that writes, on a disk that takes no more: one line that names the file, the old file as it was, and nothing beside it.

The disk is full at any byte: files may grow to a number of bytes that the case draws, as on a file system with so much room.
"""

from __future__ import annotations

import os
import resource
from contextlib import contextmanager

import numpy as np
import pytest
import xarray as xr

from hw import artifact
from sim.files import package_path
from sim.netcdf import write_netcdf
from tests.cli import run

SERVED = ("simulate", "--gpu", "H100", "--model", "Llama-3.1-8B", "--num-prompts", "30", "--request-rate", "4", "--draws", "0")
COMMANDS = {
    "run.nc": (*SERVED, "--out", "{}"),
    "chrome trace": (*SERVED, "--chrome-trace", "{}.json"),
    "plot": (*SERVED, "--plot", "{}.png"),
    "what-if": ("what-if", "--ctx", "8K", "--gpu", "A10", "--out", "{}.nc"),
    "posterior's report": ("report", str(package_path("scenarios", "data", "posteriors", "h100.nc")), "-o", "{}.html"),
}


@contextmanager
def room(size_bytes):
    """Files grow to so many bytes, and not by one more."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size_bytes", [0, 100, 1500])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_leaves_nothing(tmp_path, name, size_bytes):
    folder = tmp_path / "full"
    folder.mkdir()
    with room(size_bytes):
        result = run(*(each.format(folder / "out") for each in COMMANDS[name]))
    assert result.code == 1, result
    assert len(result.stderr.strip().splitlines()) == 1
    assert str(folder / "out") in result.stderr
    assert "File too large" in result.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("write", [write_netcdf, lambda path, data: artifact.write(data, path)], ids=["results", "measurements"])
def test_the_file_before_stays(tmp_path, write):
    path, draw = tmp_path / "a.nc", np.random.default_rng(0)
    small, large = (xr.Dataset({"a": ("x", draw.random(count))}, attrs={"schema": artifact.SCHEMA}) for count in (3, 100_000))
    write(path, small)
    before = path.read_bytes()
    for size_bytes in (0, 1, 4096, 100_000):
        with room(size_bytes), pytest.raises(OSError, match=r"a\.nc"):
            write(path, large)
        assert path.read_bytes() == before
        assert os.listdir(tmp_path) == ["a.nc"]
