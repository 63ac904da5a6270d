"""Cost of a sweep on Dask: overhead per cell, speed-up from one worker to two, and with --lose-workers 2,000 cells through lost workers.

The scheduler and the client are one process here. Its CPU time per empty cell bounds how many workers it can keep busy.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CELLS, SHARED, LOST_CELLS, EVERY_S = 3000, 20, 2000, 30.0
FIGURES = {f"figure_{place}": [1.0, 2.0] for place in range(50)}
STUDY = """\
question: How long does the first token take?
command: simulate
options: {{gpu: A10, model: Qwen2.5-7B, num-prompts: {requests}, random-input-len: 500, random-output-len: 100, iterations: false}}
report: [p99_ttft_ms]
"""


def empty(tasks: Any) -> Any:
    """A cell that takes no time, with a question and an answer of the usual size."""
    return FIGURES


def overhead() -> None:
    from distributed import LocalCluster

    from sim.sweeps.executor import outcomes
    from simctl.from_options.dask_workers import dask_pool

    tasks = {place: ("simulate", {f"option-{i}": "value" for i in range(12)}, "0" * 64) for place in range(CELLS)}
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster:
        for _ in range(2):  # the first time warms up
            began, cpu = time.perf_counter(), time.process_time()
            list(outcomes(tasks, empty, partial(dask_pool, cluster.scheduler_address, 2)))
            wall_ms, cpu_ms = 1e3 * (time.perf_counter() - began) / CELLS, 1e3 * (time.process_time() - cpu) / CELLS
    print(f"overhead per cell, {CELLS} empty cells on 2 workers: {cpu_ms:.2f} ms CPU of scheduler and client, {wall_ms:.2f} ms in all")
    print(f"=> one scheduler hands out {1e3 / cpu_ms:.0f} cells/s: 1,000 workers are busy with cells of {cpu_ms:.2g} s or more")


def speed_up(folder: Path) -> None:
    from distributed import LocalCluster

    from sim.sweeps.executor import outcomes
    from simctl.from_options.dask_workers import dask_pool
    from simctl.scenario_files.scenario import load_scenario
    from simctl.scenario_files.sweep_cell import answered
    from simctl.scenario_files.sweeping import tasks_of

    study = folder / "study.yaml"
    study.write_text(STUDY.format(requests=400))
    cells = dict(enumerate(tasks_of(load_scenario(study, vary={"request-rate": "1:4"}, samples=SHARED))[1]))
    took = {1: math.inf, 2: math.inf}
    for _ in range(3):
        for workers in took:
            with LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster:
                opened = partial(dask_pool, cluster.scheduler_address, workers)
                list(outcomes(dict(list(cells.items())[:workers]), answered, opened))  # imports
                began = time.perf_counter()
                list(outcomes(cells, answered, opened))
                took[workers] = min(took[workers], time.perf_counter() - began)
    print(f"{SHARED} cells, best of three: {took[1]:.1f} s with 1 worker, {took[2]:.1f} s with 2: {took[1] / took[2]:.2f} times as fast")


def sweep(study: Path, out: Path, *more: str) -> subprocess.Popen[bytes]:
    call = [sys.executable, "-m", "simctl", "sweep", str(study), "-o", str(out), *more]
    return subprocess.Popen(call, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL)


def lose_workers(folder: Path) -> None:
    from distributed import LocalCluster

    study = folder / "study.yaml"
    study.write_text(STUDY.format(requests=20))
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as cluster:
        began, lost, kill_at = time.perf_counter(), 0, EVERY_S
        more = ("--vary", "request-rate=0.5:8", "--samples", str(LOST_CELLS), "--dask", cluster.scheduler_address, "--progress")
        process = sweep(study, folder / "lost.zarr", *more)
        while process.poll() is None:
            time.sleep(0.1)
            if time.perf_counter() - began > kill_at:
                cluster.scale(2)  # a busy machine may have been too slow to start the last one again
                running = [nanny.pid for nanny in cluster.workers.values() if nanny.pid]
                if running:
                    os.kill(running[lost % len(running)], signal.SIGKILL)
                    lost += 1
                kill_at += EVERY_S
        took = time.perf_counter() - began
    import xarray as xr

    done = int(xr.open_zarr(folder / "lost.zarr").done.sum())
    ends = f"exit code {process.returncode}"
    print(f"{done} of {LOST_CELLS} cells in {took:.0f} s, {lost} workers killed, one every {EVERY_S:.0f} s; {ends}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        if "--lose-workers" in sys.argv:
            lose_workers(Path(folder))
        else:
            overhead()
            speed_up(Path(folder))


if __name__ == "__main__":
    main()
