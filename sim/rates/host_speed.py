"""Speed of a host over those measured: as given, or as `simctl measure --suite host` found it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sim.errors import SimctlError, UsageError

# Medians of the two measured hosts of which the suite is packaged (tests/served/test_host_speed_narrows_what_is_known_of_launching.py).
LAUNCH_S = 2.078e-4  # to launch the kernels of one compiled layer: a small kernel alone says less of a Python host
INTERPRETER_S = 3.925e-5  # for one JSON round trip
HOSTS = 0.88  # geometric mean over six hosts of the geometric mean of the two
MOST = 20.0  # times the measured hosts', or a MOST-th: beyond, a number or a file means something else


@dataclass(frozen=True, slots=True)
class HostSpeed:
    """Time of a host over that of the measured ones: to launch kernels, and to interpret Python. 1 is as measured; less is faster."""

    launch: float = 1.0
    interpreter: float = 1.0

    def eager(self) -> HostSpeed:
        """The same host for an engine without compiled layers and graphs, whose kernels Python launches one by one, by the geometric mean
        of its two speeds, over HOSTS.
        """
        return replace(self, launch=math.sqrt(self.launch * self.interpreter) / HOSTS)

    @classmethod
    def of(cls, given: HostSpeed | str | float | Path) -> HostSpeed:
        """A factor for both, or the netCDF file of the suite `host`. UsageError beyond MOST, SimctlError for a file that is none."""
        if not isinstance(given, HostSpeed):
            try:
                factor = float(given)  # type: ignore[arg-type]
                given = cls(factor, factor)
            except (TypeError, ValueError):
                given = _measured(Path(given))  # type: ignore[arg-type]
        for value in (given.launch, given.interpreter):
            if not 1 / MOST <= value <= MOST:
                raise UsageError(f"a host's time must be {1 / MOST:g} to {MOST:g} times that of the measured hosts, got {value:g}")
        return given


def _measured(path: Path) -> HostSpeed:
    import xarray as xr

    if not path.is_file():
        raise UsageError(f"{path}: neither a number nor a file")
    try:
        with xr.open_dataset(path) as data:
            found = dict(zip(map(str, data["what"].values), map(float, np.asarray(data["value_median"].values)), strict=True))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SimctlError(f"{path}: not a result of the suite host ({type(error).__name__})") from None
    if not {"layer_compiled_queue", "json_round_trip"} <= found.keys():
        raise SimctlError(f"{path}: not a result of the suite host with a GPU (it times no launch)")
    return HostSpeed(found["layer_compiled_queue"] / LAUNCH_S, found["json_round_trip"] / INTERPRETER_S)
