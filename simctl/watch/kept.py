"""What a watcher has learnt of servers, kept in a file for the next one: how slow each is, and how much its windows scatter."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hw.serve.http_stream import shown
from sim.errors import UsageError
from sim.files import text_of, write_text
from sim.twin.level import GRID, SCALES, Level, Scatter
from sim.twin.twin import Twin, TwinServer

if TYPE_CHECKING:
    from sim import Deployment

SCHEMA = "simctl-watch/1"
MOST_BYTES = 1 << 26
LEVELS = ("level", "first_token", "first_median")
SCATTERS = ("scatter", "mean_scatter")


class Kept:
    """The file, of watchers of one deployment."""

    def __init__(self, file: Path | None, deployment: Deployment) -> None:
        d = deployment
        self._file, self._of = file, f"{d.placed} {d.model.name} {d.precision.weights} {d.limits.engine}"

    def take_up(self, twin: Twin) -> str:
        """Begin with what the file says of the twin's servers, as old as it is; in words, what. UsageError where it is no such file, or of
        another deployment.
        """
        if self._file is None or not self._file.exists():
            return ""
        where = str(self._file)
        try:
            kept = json.loads(text_of(self._file, MOST_BYTES))
            if kept["schema"] != SCHEMA:
                raise UsageError(f"{where}: what a watcher has learnt is of schema {SCHEMA}, not {str(kept['schema'])[:40]!r}")
            if kept["of"] != self._of:
                raise UsageError(f"{where}: was learnt of {str(kept['of'])[:80]}, not of {self._of}")
            age_s, found = max(time.time() - float(kept["at"]), 0.0), 0
            for server in twin.servers:
                if (said := kept["servers"].get(shown(server.url))) is not None:
                    _fill(server, said, age_s)
                    found += 1
        except UsageError:
            raise
        except OSError as error:
            raise UsageError(f"{where}: {error.strerror or error}") from None
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            raise UsageError(f"{where}: is not what a watcher has kept of its servers") from None
        return f"{where}: {found} of {len(twin.servers)} servers are known, since {age_s / 60:.0f} min ago"

    def keep(self, twin: Twin) -> str:
        """Write what is known now. Returns why it could not be, or nothing."""
        if self._file is None:
            return ""
        servers = {shown(server.url): _plain(server) for server in twin.servers if server.level.learnt}
        try:
            write_text(self._file, json.dumps({"schema": SCHEMA, "of": self._of, "at": time.time(), "servers": servers}) + "\n")
        except OSError as error:
            return f"{self._file}: {error.strerror or error}"
        return ""


def _plain(server: TwinServer) -> dict[str, Any]:
    levels = {name: getattr(server, name) for name in LEVELS}
    return {name: {"learnt": level.learnt, "weights": _short(level.weights)} for name, level in levels.items()} | {
        name: {metric: _short(each.log_weights) for metric, each in getattr(server, name).items()} for name in SCATTERS
    }


def _short(values: Any) -> list[float]:
    return [float(f"{value:.6g}") for value in values.tolist()]


def _fill(server: TwinServer, said: dict[str, Any], age_s: float) -> None:
    """Put into a server what was kept of it. ValueError, TypeError or KeyError where that cannot be."""
    for name in LEVELS:
        weights, learnt = _column(said[name]["weights"], len(GRID)), int(said[name]["learnt"])
        if weights.min() < 0 or not weights.sum() > 0 or learnt < 0:
            raise ValueError
        setattr(server, name, Level(weights / weights.sum(), learnt).later(age_s))
    for name in SCATTERS:
        setattr(server, name, {metric: Scatter(_column(said[name][metric], len(SCALES))) for metric in getattr(server, name)})


def _column(values: Any, length: int) -> Any:
    found = np.array(values, dtype=float)
    if found.shape != (length,) or not np.isfinite(found).all():
        raise ValueError
    return found
