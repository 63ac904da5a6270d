"""Clock and power of the first GPU while a load runs: a card under its power limit lowers its clock, and the same work takes longer then.

Read beside the load by the driver's own tool, PERIOD_MS apart where nothing else is asked; no setting is changed. Where there is no such
tool nothing is read.
"""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

PERIOD_MS = 100
_QUERY = "clocks.sm,power.draw"
STOP_S = 5.0
COLUMNS = {
    "clock_sm_mhz_median": ("median clock of the first GPU's multiprocessors meanwhile", "MHz"),
    "clock_sm_mhz_p10": ("clock that a tenth of the readings lay below", "MHz"),
    "power_w_mean": ("mean power it drew", "W"),
}


class Reading(NamedTuple):
    """Clock (MHz), power (W), and when it was read on `time.perf_counter` (s)."""

    clock_mhz: float
    power_w: float
    at_s: float


@contextmanager
def clocks(period_ms: int = PERIOD_MS) -> Iterator[list[Reading]]:
    """A list that fills with readings while the block runs, and is whole after it."""
    readings: list[Reading] = []
    if shutil.which("nvidia-smi") is None:
        yield readings
        return
    command = ["nvidia-smi", "--id=0", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits", f"--loop-ms={period_ms}"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as tool:

        def read() -> None:
            for line in tool.stdout or ():
                if (found := parsed(line)) is not None:
                    readings.append(Reading(*found, time.perf_counter()))  # noqa: PERF401 (whoever waits for readings sees each as it comes)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            yield readings
        finally:
            tool.terminate()
            try:
                tool.wait(STOP_S)
            except subprocess.TimeoutExpired:
                tool.kill()
            reader.join(STOP_S)


def parsed(line: str) -> tuple[float, float] | None:
    """(MHz, W) of a line of the tool; None of one that holds no two numbers, as where a card does not tell its power."""
    try:
        clock, power = map(float, line.split(","))
    except ValueError:
        return None
    return clock, power


def summary(readings: Sequence[Reading]) -> dict[str, float]:
    """COLUMNS of the readings; none of them where there are none."""
    if not readings:
        return {}
    clock, power, _ = np.array(readings, dtype=float).T
    return {
        "clock_sm_mhz_median": float(np.median(clock)),
        "clock_sm_mhz_p10": float(np.quantile(clock, 0.1)),
        "power_w_mean": float(power.mean()),
    }
