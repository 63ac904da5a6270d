"""The array engine and its fleet compiled with numba, where that is installed and the work is worth its start-up.

What is compiled is the plain source: the code objects of sim.engine.core, and of the formula's own functions, with each other in place of
the plain ones. Machine code is kept in a cache that a digest of these code objects and of the constants that they read names: no change is
missed, and none of a comment, of another function of their files or of the checkout's place makes it again.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from sim import ticks
from sim.cluster import fleet_core, fleet_routes, fleet_state
from sim.cost import batch, smooth, step_time, work
from sim.cost.graphs import GRAPH_TOKENS, captured_padding
from sim.cost.rates import UNITS, Rates
from sim.engine import core, core_decide, core_iterations, core_kv, core_log_rows, core_parts, core_time
from sim.engine import step_clock as iteration

# Output tokens at which plain Python takes as long as loading machine code does (half a second), or making it (half a minute).
WORTH_TOKENS = 500_000
WORTH_MAKING = 50_000_000
OFF = "SIMCTL_NO_NUMBA"  # set: plain Python always

_FORMULA: tuple[Any, ...] = (
    smooth.smooth_max,
    batch.chunk_pairs,
    batch.from_sums,
    work.attention_work,
    work.launch_layers,
    step_time.attention_s,
    step_time.exposed_launch_s,
    step_time.terms_of,
    step_time.total_s,
    iteration.late_share,
    iteration.on_chord,
    iteration.staged_s,
    ticks.elapsed,
    ticks.to_ticks,
)
# modules of the engine, those that are called before those that call them
_ENGINE = (core_log_rows, core_kv, core_parts, core_time, core_decide, core_iterations, core, fleet_state, fleet_routes, fleet_core)

_HOW = {"error_model": "numpy", "_nrt": False}  # nothing is allocated: no references are counted
_INNER = _HOW | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}


def available() -> bool:
    """Whether the loop can be compiled."""
    return not os.environ.get(OFF) and find_spec("numba") is not None


def worth(output_tokens: int) -> bool:
    """Whether compiled code serves so many output tokens sooner, its loading included; or its making, where none is cached yet."""
    if not available():
        return False
    if "numba" in sys.modules and serve_fleet.cache_info().currsize:
        return True
    return output_tokens >= (WORTH_TOKENS if warm() else WORTH_MAKING)


@cache
def warm() -> bool:
    """Whether machine code of these very sources lies in the cache."""
    return available() and any(_cache_directory(version("numba")).rglob("engine.serve_fleet*.nbc"))


@cache
def serve_fleet() -> Callable[..., int]:
    """sim.cluster.fleet_core.serve_fleet, compiled at its first call or read from the cache."""
    import numba

    padding, cached = _padding(), _cache_directory(version("numba"))
    source = cached / "engine.py"  # numba notes a file's name, time and line: of one that is the same wherever the checkout lies
    source.parent.mkdir(parents=True, exist_ok=True)
    source.touch()
    os.utime(source, (0, 0))

    def padding_of(tokens: float) -> float:
        return padding[int(tokens)] if tokens <= GRAPH_TOKENS else 0.0

    before = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(cached)
    try:
        found: dict[Any, Any] = {captured_padding: numba.njit(padding_of, **_INNER)}
        for function in _compilable():
            names, code = function.__globals__, function.__code__
            space = names | {name: found[each] for name, each in names.items() if isinstance(each, FunctionType) and each in found}
            if function is fleet_core.serve_fleet:
                code = code.replace(co_filename=str(source), co_firstlineno=1)
            own = FunctionType(code, space, function.__name__, function.__defaults__)
            how = _HOW | {"nogil": True, "cache": True} if function is fleet_core.serve_fleet else _INNER
            found[function] = numba.njit(own, **how)
    finally:
        numba.config.CACHE_DIR = before
    compiled: Callable[..., int] = found[fleet_core.serve_fleet]
    return compiled


def resolved(*given: Any) -> Callable[..., int]:
    """`serve_fleet` for the types of these arguments: numba looks types of records up at every call, for half a millisecond."""
    import numba

    made: Any = serve_fleet()
    kinds = tuple(map(numba.typeof, given))
    if kinds not in made.overloads:
        made.compile(kinds)
    found: Callable[..., int] = made.overloads[kinds].entry_point
    return found


def _compilable() -> Iterator[FunctionType]:
    """All functions that are compiled, those that are called before those that call them."""
    yield from _FORMULA
    for module in _ENGINE:
        yield from _functions(module)


@cache
def _padding() -> Any:
    return np.array([captured_padding(float(tokens)) for tokens in range(GRAPH_TOKENS + 1)])


def _functions(module: Any) -> list[FunctionType]:
    """The functions of a module, those that are called before those that call them."""
    own = {name: each for name, each in vars(module).items() if isinstance(each, FunctionType) and each.__module__ == module.__name__}
    ordered: dict[str, FunctionType] = {}

    def visit(name: str) -> None:
        if name in ordered:
            return
        for called in own[name].__code__.co_names:
            if called in own and called != name:
                visit(called)
        ordered[name] = own[name]

    for name in own:
        visit(name)
    return list(ordered.values())


@cache
def _cache_directory(numba_version: str) -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256(f"{numba_version} {sys.version} {_HOW} {_padding().tobytes().hex()}".encode())
    for function in _compilable():
        digest.update(f"{function.__name__} {function.__defaults__} {_meaning(function)}".encode())
    return home / "simctl" / "numba" / digest.hexdigest()[:16]


def _meaning(function: FunctionType) -> list[Any]:
    """Dependencies of a function's machine code: its instructions, and the values of the globals and module attributes that they read."""
    code, names = function.__code__, function.__globals__
    constants = [each for each in code.co_consts if each != function.__doc__]
    read: list[Any] = [code.co_code.hex(), constants, code.co_varnames, code.co_names]
    for name in code.co_names:
        modules = [each for each in (names.get(other) for other in code.co_names) if isinstance(each, ModuleType)]
        for value in (names.get(name), *(getattr(module, name, None) for module in modules)):
            if isinstance(value, int | float | str | tuple):
                read.append((name, value))
            elif isinstance(value, type):
                read.append((name, getattr(value, "_fields", None)))
            elif isinstance(value, FunctionType):
                read.append((name, value.__module__, value.__qualname__))
    return read


def main() -> None:
    """Compile now, so that no question waits for it: `python -m sim.engine.compiled`, a minute once."""
    from sim.cluster.fleet_runs import serve_calls
    from sim.engine.config import EngineConfig
    from sim.rates.serving import NO_HOST
    from sim.specs.models import get_model
    from sim.specs.precision import Precision
    from sim.workload.trace import TraceBuilder

    if available() and not warm():
        rates = {name: 1e12 if unit.startswith(("bytes", "flop")) else 1e-6 for name, unit in UNITS.items()}
        steps = iteration.StepTime(get_model("Llama-3.1-8B"), Precision(), Rates(**rates))
        builder = TraceBuilder("one call")
        builder.add("0", arrival_s=0.0, prompt_tokens=1, output_tokens=2)
        serve_calls(builder.build(), EngineConfig(), steps, NO_HOST, 1, "lmetric", {}, None, None, keep=True, compiled=True)


if __name__ == "__main__":
    main()
