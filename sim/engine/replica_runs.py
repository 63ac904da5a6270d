"""One replica served by the array engine, as plain Python: prices supplied as they are asked for, the log drained as it fills."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, get_type_hints

import numpy as np
from numpy.typing import NDArray

import sim.engine.core_state as at
from sim.cost.coefficients import Coefficients
from sim.engine.config import EngineConfig
from sim.engine.core import serve as serve_all
from sim.engine.core_iterations import Given
from sim.engine.core_state import Core, make_core, supply
from sim.engine.step_clock import StepTime
from sim.workload.block_chains import Chains

Ints = NDArray[np.int64]

UNKNOWN = [at.SCHEDULED, at.FIRST_SENT, at.LAST_SENT, at.ADMISSION, at.CACHED, at.FILLS]  # columns of a request that begin with -1
_COEFFICIENTS = [name for name, kind in get_type_hints(Coefficients).items() if kind in (float, int)]


class PlainPolicy(NamedTuple):
    """Dense attention in HBM."""

    placement: str = "hbm"
    overlap: float = 0.0


@dataclass(frozen=True, slots=True)
class Served:
    """Result of a replica: when its requests came (ticks, ascending), and the log: `rows` [row, ROW] and `entries` [entry, ENTRY], whose
    requests are places (see sim.engine.core_state).
    """

    arrives: Ints
    rows: Ints
    entries: Ints
    calls: Ints  # [place] what the requests of entries are called elsewhere


def given_of(steps: StepTime, arrays: bool = False) -> Given:
    """Inputs of the formula; with `arrays` as records, whose type compiled code knows at a glance."""
    coefficients, rates = steps.given
    if not arrays:
        return Given(coefficients, rates, steps.policy)
    return Given(_record(_COEFFICIENTS, coefficients), _record(rates.names(), rates), PlainPolicy())


def _record(names: Iterable[str], values: Any) -> Any:
    """Numbers by name as a numpy record."""
    columns = list(names)
    numbers = tuple(float(getattr(values, name)) for name in columns)
    return np.array(numbers, dtype=[(name, np.float64) for name in columns]).view(np.recarray)[()]


def requests_of(arrives: Ints, prompt: Ints, output: Ints) -> Ints:
    """Numbers of requests [request, REQUEST] before they come."""
    one = np.zeros(at.REQUEST, dtype=np.int64)
    one[UNKNOWN] = -1
    q = np.repeat(one[None], len(arrives), axis=0)  # of a million, every column filled is a pass through memory
    q[:, at.ARRIVES], q[:, at.PROMPT], q[:, at.OUTPUT] = arrives, prompt, output
    return q


class Log:
    """Rows moved out of the log of a replica's state."""

    def __init__(self) -> None:
        self._rows: list[Ints] = []
        self._entries: list[Ints] = []
        self._drained = 0

    def drain(self, core: Core, kept: int) -> None:
        """Move all but the last `kept` rows, which may still change."""
        count = int(core.s[at.ROWS]) - kept
        self._rows.append(np.array(core.rows[: count * at.ROW], dtype=np.int64).reshape(-1, at.ROW))
        part = np.array(core.entries[: core.s[at.ENTRIES] * at.ENTRY], dtype=np.int64).reshape(-1, at.ENTRY)
        of_request = part[:, 0] != at.EPISODE
        part[of_request, 1] += self._drained
        part[of_request, 2] //= at.REQUEST
        self._entries.append(part)
        for column in range(kept * at.ROW):
            core.rows[column] = core.rows[count * at.ROW + column]
        core.s[at.ROWS], core.s[at.ENTRIES] = kept, 0
        self._drained += count

    def served(self, arrives: Ints, calls: Ints) -> Served:
        """All of it, beside when the replica's requests came."""
        return Served(np.sort(arrives), np.concatenate(self._rows), np.concatenate(self._entries), calls)


def serve(
    config: EngineConfig,
    steps: StepTime,
    arrives: Ints,
    prompt: Ints,
    output: Ints,
    shared: Chains | None = None,
    calls: Ints | None = None,
    ranks: Ints | None = None,
    arrival_s: Any = None,
    *,
    keep: bool = False,
) -> tuple[Ints, Served]:
    """Numbers [request, REQUEST] of requests that the engine gets at these ticks (ascending), with prompt and output tokens, when they are
    served. `keep` keeps the log. Priorities need `ranks` (sim.engine.core_state) and when clients sent the requests.

    Raises OverflowError for a run of more than sim.ticks.MOST_TICKS.
    """
    q = requests_of(arrives, prompt, output)
    names, deepest = np.zeros(0, dtype=np.int64), 0
    if shared is not None and config.enable_prefix_caching:
        names, q[:, at.NAMES], q[:, at.DEPTH] = shared.names, shared.begins, shared.depths
        deepest = int(shared.depths.max(initial=0))
    order = (np.zeros(0, dtype=np.int64) if ranks is None else ranks), (np.zeros(0) if arrival_s is None else arrival_s)
    core = make_core(config, steps, q.ravel(), names, deepest, *order, keep=keep)
    core.s[at.HEARD] = 0
    given, log = given_of(steps), Log()
    while (reason := serve_all(core, given)) != at.DONE:
        if reason == at.NEEDS_ROOM:
            log.drain(core, 1)
        elif reason == at.TOO_LATE:
            raise OverflowError("more simulated time than 64 bits of ticks hold")
        else:
            supply(core, steps, reason)
    log.drain(core, 0)
    requests = np.array(core.q, dtype=np.int64).reshape(-1, at.REQUEST)
    return requests, log.served(arrives, np.arange(len(requests)) if calls is None else calls)
