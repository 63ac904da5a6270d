"""SIGKILL, SIGTERM and Ctrl-C at drawn moments of every command that writes: the old file or the whole new one, and nothing beside it.

A command runs in a fork of this process, which has imported what it needs, so that the moments fall into its work and its writing.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from hw import artifact
from sim import files, machine_code_cache, termination
from sim.errors import UsageError
from sim.files import package_path
from sim.netcdf import write_netcdf
from simctl.cli import main
from tests.sweeps.made_sweeps import figures, opened

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
SERVED = ("--gpu", "H100", "--model", "Llama-3.1-8B", "--num-prompts", "40", "--request-rate", "4", "--draws", "2")


def command(*arguments: str) -> Callable[[Path], int]:
    return lambda target: int(main([each.format(target) for each in arguments]) or 0)


def measured(target: Path) -> int:
    data = xr.Dataset({"a": ("x", np.random.default_rng(0).random(200_000))}, attrs={"schema": artifact.SCHEMA})
    artifact.write(data, target)
    return 0


def posterior(target: Path) -> int:
    write_netcdf(target, xr.Dataset({"a": ("x", np.random.default_rng(0).random(200_000))}))
    return 0


def machine_code(target: Path) -> int:
    machine_code_cache.keep(target / "code", np.random.default_rng(0).bytes(3_000_000))
    return 0


WRITE: dict[str, Callable[[Path], int]] = {
    "what-if": command("what-if", "--ctx", "8K", "--gpu", "A10", "--out", "{}"),
    "simulate": command("simulate", *SERVED, "--out", "{}"),
    "trace": command("simulate", *SERVED, "--chrome-trace", "{}"),
    "plan": command(
        "plan", "--gpu", "H100", "--model", "Llama-3.1-8B", "--request-rate", "4", "--slo", "ttft:p99<500ms", "--quick", "-o", "{}"
    ),
    "report": command("report", str(package_path("scenarios", "data", "posteriors", "h100.nc")), "-o", "{}"),
    "measure": measured,
    "calibrate, learn": posterior,
    "compile": machine_code,
}
PARTIAL = {"plan"}  # interrupted, it writes and says what is known so far
QUICK = ("what-if", "simulate")


def content(path: Path) -> dict[str, bytes]:
    """Bytes of a file, or of a folder's files by name, hidden ones apart."""
    found = [path] if path.is_file() else sorted(path.iterdir()) if path.is_dir() else []
    return {each.name: each.read_bytes() for each in found if not each.name.startswith(".")}


def alike(one: dict[str, bytes], other: dict[str, bytes]) -> bool:
    """Whether all files hold the same; a netCDF's variables may stand in another order, as the library's objects were freed."""
    return list(one) == list(other) and all(_same(one[name], other[name]) for name in one)


def _same(one: bytes, other: bytes) -> bool:
    if one == other or not one.startswith(b"\x89HDF"):
        return one == other
    datasets = [xr.open_dataset(io.BytesIO(each), engine="h5netcdf").load() for each in (one, other)]
    return bool(datasets[0].identical(datasets[1]))


def hidden(folder: Path) -> list[str]:
    return [each.name for each in folder.rglob("*") if each.name.startswith(".")]


def started(work: Callable[[Path], int], target: Path, said: Path) -> int:
    """The process number of a fork that works and ends with its exit code."""
    if number := os.fork():
        return number
    code = 99
    try:
        files._sweep.cache_clear()
        descriptor = os.open(said, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(descriptor, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with termination.as_interruption():
            code = work(target)
    except SystemExit as stop:
        code = int(stop.code or 0)
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            gc.collect()  # as a process that ends does: what was interrupted on its way into a `with` is closed
            sys.stderr.flush()
        os._exit(code)


def ended(number: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def killed(name: str, folder: Path, times: int) -> int:
    """How many of so many signals came before the end. Every one leaves the old content or the new."""
    work, draw, target, said = WRITE[name], random.Random(name), folder / "out", folder.parent / "said"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        work(folder.parent / "before")  # here: what is imported and read on the way is so in every fork
    begun = [time.monotonic()]
    for _ in range(2):
        assert ended(started(work, target, said)) == 0, said.read_text()
        begun.append(time.monotonic())
    lasts, new = begun[2] - begun[1], content(target)
    assert new
    early = 0
    for each in range(times):
        sign = SIGNALS[each % 3]
        old = content(target)
        number = started(work, target, said)
        time.sleep(draw.uniform(0.0, 1.1 * lasts))
        os.kill(number, sign)
        code, words = ended(number), said.read_text().strip()  # Ctrl-C begins a line
        early += code != 0
        assert "Traceback" not in words, words
        found = content(target)
        whole = alike(found, old) or alike(found, new) or (name in PARTIAL and json.loads(found["out"])["simctl_plan"])
        assert whole, (name, sign, code, words, {each: (len(text), text == new.get(each)) for each, text in found.items()})
        if sign != signal.SIGKILL:
            assert code in (0, 130, 143, -sign), words  # by the signal itself before the command has begun, or when it has ended
            said_more = [line for line in words.splitlines() if not line.startswith("wrote ")]  # what was done before the signal
            assert code == 0 or len(said_more) <= 1 or name in PARTIAL, words
            assert not hidden(folder), (name, sign)
        if draw.random() < 0.5:
            shutil.rmtree(folder)
            folder.mkdir()
    files._sweep.cache_clear()
    assert ended(started(work, target, said)) == 0
    assert not hidden(folder)  # what SIGKILL left has been swept
    assert alike(content(target), new)
    return early


@pytest.mark.parametrize("name", QUICK)
def test_a_few_moments(tmp_path, name):
    folder = tmp_path / "here"
    folder.mkdir()
    killed(name, folder, 3)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITE)
def test_fifty_moments(tmp_path, name):
    folder = tmp_path / "here"
    folder.mkdir()
    assert killed(name, folder, 50) >= 20


def test_a_second_writer_of_a_store_is_refused_and_a_dead_one_is_not_in_the_way(tmp_path):
    path = tmp_path / "a.zarr"
    with opened(path) as store:
        store.put(0, figures(0), "")
        store.flush(now=True)
        with pytest.raises(UsageError, match="another process writes this sweep"), opened(path):
            pass
        store.put(1, figures(1), "")
        store.flush(now=True)
    with opened(path) as store:
        assert store.done.tolist()[:3] == [True, True, False]
