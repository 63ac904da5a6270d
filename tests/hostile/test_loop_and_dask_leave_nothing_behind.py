"""A loop refuses what is no folder before it measures; a sweep on Dask takes its scratch folder away."""

import os
import tempfile

import pytest

from simctl.from_options.dask_workers import dask_pool
from tests.cli import run


@pytest.mark.parametrize("kind", ["pipe", "file", "below a file"])
def test_a_loop_into_what_is_no_folder_is_one_line(kind, tmp_path):
    target = tmp_path / "out"
    if kind == "pipe":
        os.mkfifo(target)
    else:
        target.write_text("mine")
    code, out, err = run("loop", "-o", str(target / "deeper" if kind == "below a file" else target))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "cannot write into" in err
    assert os.listdir(tmp_path) == ["out"]


def test_dask_of_this_machine_leaves_no_scratch_folder(tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with dask_pool("local", 1) as pool:
        assert pool.executor.submit(sum, [1, 2]).result(60) == 3
        assert any(name.startswith("simctl-dask-") for name in os.listdir(tmp_path))
    assert not [name for name in os.listdir(tmp_path) if "dask" in name]
