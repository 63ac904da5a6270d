"""`simctl explain` of a run whose columns or attributes are odd ends in one line that names the file, never in a traceback."""

from itertools import cycle

import numpy as np
import pytest
import xarray as xr

from tests.cli import run

SERVED = ("simulate", "--gpu", "H100", "--model", "Llama-3.1-8B", "--num-prompts", "12", "--request-rate", "5", "--draws", "0")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    assert run(*SERVED, "--out", str(folder / "run")).code == 0
    with xr.open_dataset(folder / "run" / "run.nc") as opened:
        return opened.load()


def nan(name):
    return lambda data: data.assign({name: (data[name].dims, np.full(data[name].shape, np.nan))})


def texts(name):
    return lambda data: data.assign({name: (data[name].dims, np.full(data[name].shape, "x", dtype=object))})


def attribute(name, value):
    return lambda data: data.assign_attrs({name: value})


DAMAGES = (
    *(nan(name) for name in ("arrival_s", "chunk_tokens", "prompt_tokens", "start_s", "duration_s")),
    *(texts(name) for name in ("arrival_s", "stall_s", "term_s", "chunk_tokens", "start_s")),
    attribute("block_size", ""),
    attribute("block_size", "sixteen"),
    attribute("enable_prefix_caching", np.array([1, 2])),
    attribute("enable_prefix_caching", ""),
    attribute("host_request_s", "x"),
    attribute("host_request_s", np.array([], dtype=float)),
    attribute("pools", "one"),
)
ASKED = (("3",), ("--slowest", "3"), ("3", "--json"))  # a third of the damages each: half a second goes into reading a run


@pytest.mark.parametrize(("damage", "asked"), list(zip(DAMAGES, cycle(ASKED), strict=False)))
def test_one_line_that_names_the_file(damage, asked, whole, tmp_path):
    damage(whole).to_netcdf(tmp_path / "run.nc", engine="h5netcdf")
    code, out, err = run("explain", str(tmp_path), *asked)
    if code:  # what an answer does not need may be odd
        assert (out, err.count("\n")) == ("", 1), err
        assert err.startswith("simctl: ")
    else:
        assert out
        assert err == ""


def test_some_of_these_are_refused_by_name(whole, tmp_path):
    attribute("block_size", "sixteen")(whole).to_netcdf(tmp_path / "run.nc", engine="h5netcdf")
    code, _, err = run("explain", str(tmp_path), "3")
    assert code == 2
    assert "a damaged result" in err
    assert str(tmp_path) in err
