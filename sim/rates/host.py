"""Host of a server beside those measured: launching, engine and API work, host link; given, measured without an engine, or learnt.

A factor, the result of `simctl measure --suite host` (netCDF), or a host file (JSON) that `simctl learn --host-out` writes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path

import numpy as np

from sim.errors import SimctlError, UsageError
from sim.files import text_of

# Medians of the two measured hosts of which the suite is packaged (tests/served/test_host_speed_narrows_what_is_known_of_launching.py).
LAUNCH_S = 2.078e-4  # to launch the kernels of one compiled layer: a small kernel alone says less of a Python host
INTERPRETER_S = 3.925e-5  # for one JSON round trip
HOSTS = 0.88  # geometric mean over six hosts of the geometric mean of the two
MOST = 20.0  # times the measured hosts', or a MOST-th: beyond, a number or a file means something else
SCHEMA, MOST_BYTES = "simctl-host/1", 1 << 16
API_TIMES = ("request_s", "serial_s", "prompt_token_s", "token_s")
FACTORS = ("launch", "work", "step", "clock")


@dataclass(frozen=True, slots=True)
class Host:
    """Times of a host over those of the measured ones (1 is as measured; less is faster), and of a server learnt from its own requests.

    `launch`: to launch kernels one by one; `work`: of the engine's own work per iteration and per sequence, and of its API server, all of
    it interpreted Python; `step`: of the GPU's iterations over those predicted; `clock`: of what computing binds (GEMMs, attention of
    prompts) beyond that, as a throttled card takes. Their log sds are None where nothing was learnt of them.
    `api_s` are seconds by name (sim.rates.serving.UNITS), instead of the packaged servers' times `work`. `link_bytes_per_s`: bandwidth
    between host memory and a GPU.
    """

    launch: float = 1.0
    work: float = 1.0
    step: float = 1.0
    clock: float = 1.0
    launch_sd: float | None = None
    work_sd: float | None = None
    step_sd: float | None = None
    clock_sd: float | None = None
    api_s: Mapping[str, float] = field(default_factory=dict)
    link_bytes_per_s: float | None = None
    source: str = "as given"

    def __post_init__(self) -> None:
        for name in FACTORS:
            value = getattr(self, name)
            if not 1 / MOST <= value <= MOST:
                raise UsageError(f"a host's time must be {1 / MOST:g} to {MOST:g} times that of the measured hosts, got {value:g}")
        sds = [sd for name in FACTORS if (sd := getattr(self, f"{name}_sd")) is not None]
        if not all(0.0 <= sd <= math.log(MOST) for sd in sds) or not all(0.0 <= value < 10.0 for value in self.api_s.values()):
            raise UsageError("a host's log sds and times must be finite and not negative")
        if unknown := [name for name in self.api_s if name not in API_TIMES]:
            raise UsageError(f"a host has no time {unknown[0]!r}; there are {', '.join(API_TIMES)}")
        if self.link_bytes_per_s is not None and not 1e8 <= self.link_bytes_per_s <= 1e13:
            raise UsageError(f"a host's link must be 1e8 to 1e13 bytes/s, got {self.link_bytes_per_s:g}")

    def eager(self) -> Host:
        """The same host for an engine without compiled layers and graphs, whose kernels Python launches one by one, by the geometric mean
        of its two speeds, over HOSTS.
        """
        factor = math.sqrt(self.launch * self.work) / HOSTS
        return replace(self, launch=min(max(factor, 1 / MOST), MOST))

    def text(self) -> str:
        """Contents of its host file."""
        return json.dumps({"schema": SCHEMA} | asdict(self), indent=1) + "\n"

    @classmethod
    def of(cls, given: Host | str | float | Path) -> Host:
        """A factor for launches and work, the netCDF file of the suite `host`, or a host file. UsageError for what is none of these."""
        if isinstance(given, Host):
            return given
        try:
            factor = float(given)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            path = Path(given)  # type: ignore[arg-type]
            if not path.is_file():
                raise UsageError(f"{path}: neither a number nor a file") from None
            with path.open("rb") as file:
                return _parsed(path) if file.read(1) == b"{" else _measured(path)
        return cls(factor, factor)


def _parsed(path: Path) -> Host:
    try:
        body = json.loads(text_of(path, MOST_BYTES))
        if body.pop("schema", None) != SCHEMA:
            raise ValueError(f"not of schema {SCHEMA}")
        if unknown := body.keys() - {each.name for each in fields(Host)}:
            raise ValueError(f"no entry {min(unknown)!r}")
        numbers = {name: None if value is None else float(value) for name, value in body.items() if name not in ("api_s", "source")}
        api_s = {str(name): float(value) for name, value in dict(body.get("api_s", {})).items()}
        return Host(**numbers, api_s=api_s, source=str(body.get("source", "")))  # type: ignore[arg-type]
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise SimctlError(f"{path}: not a host file ({error})") from None
    except UsageError as error:
        raise SimctlError(f"{path}: {error}") from None


def _measured(path: Path) -> Host:
    import xarray as xr

    try:
        with xr.open_dataset(path) as data:
            found = dict(zip(map(str, data["what"].values), map(float, np.asarray(data["value_median"].values)), strict=True))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SimctlError(f"{path}: not a result of the suite host ({type(error).__name__})") from None
    if not {"layer_compiled_queue", "json_round_trip"} <= found.keys():
        raise SimctlError(f"{path}: not a result of the suite host with a GPU (it times no launch)")
    factors = found["layer_compiled_queue"] / LAUNCH_S, found["json_round_trip"] / INTERPRETER_S
    return Host(*factors, source=f"measured by the suite host ({path.name})")
