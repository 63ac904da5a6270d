"""A cell whose worker dies is asked again, by processes of this machine as by Dask; one that always kills its worker ends the sweep."""

import os
import signal
from functools import partial
from pathlib import Path

import pytest

from sim.errors import SimctlError
from sim.sweeps.executor import local_pool, outcomes
from simctl.from_options.dask_workers import dask_pool
from tests.cli import run
from tests.sweeps.made_sweeps import scenario, tree

QUIET = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # of Dask's own clean-up


@pytest.fixture(scope="module")
def cluster():
    """A scheduler, and two workers that come back when they are killed."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as found:
        yield found


def square(asked):
    """Of a number; the first time that a number below 0 is asked for, its worker dies."""
    number, folder = asked
    seen = Path(folder) / str(number)
    if number < 0 and not seen.exists():
        seen.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def dies(_):
    os.kill(os.getpid(), signal.SIGKILL)


def fails(number):
    raise KeyError(number)


def squares(opened, folder):
    cells = {place: (place if place % 5 else -place - 1, str(folder)) for place in range(20)}
    lists = list(outcomes(cells, square, opened))
    found = [each for some in lists for each in some]
    assert sorted(found) == [(place, number * number) for place, (number, _) in cells.items()]


def test_on_processes_of_this_machine(tmp_path):
    squares(partial(local_pool, 2), tmp_path)
    assert len(list(tmp_path.iterdir())) == 4


def test_one_that_always_kills_its_worker_ends_the_sweep():
    with pytest.raises(SimctlError, match="a worker process died"):
        list(outcomes({0: 0}, dies, partial(local_pool, 1)))


def test_an_error_of_the_cell_is_its_own():
    with pytest.raises(KeyError):
        list(outcomes({0: 0}, fails, partial(local_pool, 1)))


@QUIET
def test_on_a_dask_scheduler(cluster, tmp_path):
    squares(partial(dask_pool, cluster.scheduler_address, 2), tmp_path)
    assert len(list(tmp_path.iterdir())) == 4


@QUIET
def test_one_that_always_kills_its_worker_there_is_named(cluster, monkeypatch):
    monkeypatch.setattr("sim.sweeps.executor.MOST_LOSSES", 1)
    with pytest.raises(SimctlError, match="cell 3 lost"):
        list(outcomes({3: 0}, dies, partial(dask_pool, cluster.scheduler_address, 2)))


@QUIET
def test_a_store_filled_there_has_the_bytes_of_one_filled_here(cluster, tmp_path):
    study = scenario(tmp_path)
    for name, more in {"dask": ("--dask", cluster.scheduler_address), "here": ("--workers", "1")}.items():
        result = run("sweep", study, "-o", str(tmp_path / name), *more)
        assert result.code == 0, result.stderr
    assert tree(tmp_path / "dask") == tree(tmp_path / "here")


@QUIET
def test_a_scheduler_without_workers_is_not_waited_for_for_ever(monkeypatch):
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr("sim.sweeps.executor.DESERTED_S", 0.5)
    empty = distributed.LocalCluster(n_workers=0, dashboard_address=":0", silence_logs=50)
    with empty, pytest.raises(SimctlError, match="no worker for"):
        list(outcomes({0: 0}, abs, partial(dask_pool, empty.scheduler_address, 1)))
