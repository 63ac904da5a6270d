"""A sweep that is killed, at any moment and how often soever, and then resumed leaves the bytes of an undisturbed one.

Every cell that was written is kept, and none is asked for twice.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import zarr
import zarr.storage._local as local
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sweeps.made_sweeps import KEYS, figures, opened, scenario, tree

ROOT = Path(__file__).resolve().parents[2]


class Killed(BaseException):
    """In place of SIGKILL: nothing that follows is written."""


def filled(path, order=range(6)):
    with opened(path) as store:
        for place in order:
            if not store.done[place]:
                store.put(place, figures(place), "too large" if place == 4 else "")
                store.flush(now=True)
    return tree(path)


@settings(max_examples=12)
@given(st.permutations(range(6)), st.lists(st.integers(0, 30), max_size=4))
def test_whatever_the_order_and_wherever_it_was_killed(order, kills):
    whole = local._atomic_write
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        undisturbed = filled(Path(folder) / "a.zarr")
        path = Path(folder) / "b.zarr"
        with opened(path):
            pass
        for writes in kills:
            left = [writes]

            def write(at, *arguments, _left=left, **more):
                _left[0] -= 1
                if _left[0] < 0:
                    (at.parent / f"{at.name}.0123.partial").write_bytes(b"half a fi")
                    raise Killed
                return whole(at, *arguments, **more)

            patch.setattr(local, "_atomic_write", write)
            with contextlib.suppress(Killed):
                filled(path, order)
            patch.setattr(local, "_atomic_write", whole)
            with opened(path) as store:
                assert store.damaged == 0
                for place in np.flatnonzero(store.done):
                    assert store.arrays["ttft_ms"][place] == figures(int(place))["ttft_ms"]
        assert filled(path, order) == undisturbed


@pytest.mark.parametrize("keys", [KEYS, ["changed", *KEYS[1:]]])
def test_a_cell_is_taken_for_done_only_with_its_own_key(keys, tmp_path):
    """The key holds the options, the files they name and the version: where one file has changed, its cells run again."""
    filled(tmp_path / "a.zarr")
    with opened(tmp_path / "a.zarr", keys) as store:
        assert store.done.tolist() == [key == own for key, own in zip(keys, KEYS, strict=True)]
        assert np.isnan(store.arrays["ttft_ms"]).tolist() == (~store.done).tolist()


SMALL = """\
question: How long does the first token take?
command: simulate
options: {gpu: A10, model: Qwen2.5-7B, num-prompts: 60, random-input-len: 200, random-output-len: 40, iterations: false, draws: 2}
sweep: {max-num-seqs: [4, 8, 16, 32], request-rate: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]}
report: [p99_ttft_ms]
"""


@pytest.mark.slow
def test_of_a_sweep_killed_at_twenty_random_moments(tmp_path):
    """Figures: kills that came before the end, and cells done at each."""
    study = scenario(tmp_path, SMALL)

    def started(name):
        call = [sys.executable, "-m", "simctl", "sweep", study, "-o", str(tmp_path / name), "--workers", "2"]
        return subprocess.Popen(call, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    began = time.monotonic()
    assert started("whole.zarr").wait() == 0
    took = time.monotonic() - began
    chance, kills, done = random.Random(7), 0, []
    path = tmp_path / "killed.zarr"
    while kills < 20:
        process = started("killed.zarr")
        try:
            process.wait(chance.uniform(0.0, 0.6 * took))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
        done.append(int((np.asarray(zarr.open_group(path, mode="r")["done"][...]) != 0).sum()) if path.exists() else 0)
        if done[-1] == 40 and kills < 20:  # once more from the start, so that every kill meets work
            assert tree(path) == tree(tmp_path / "whole.zarr")
            subprocess.run(["rm", "-r", str(path)], check=True)
    assert started("killed.zarr").wait() == 0
    print(f"{kills} kills within {took:.1f} s of work; cells done after each: {done}")
    assert tree(path) == tree(tmp_path / "whole.zarr")
