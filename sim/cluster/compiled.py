"""The engine in rows and its fleet as machine code, where llvmlite is installed and the work is worth its start-up.

What is compiled is the plain source (sim.machine_code): the functions of sim.engine.rows, and the formula's own. The machine code
needs nothing but `pow` of the C library. It is kept in a cache and loaded without LLVM. A digest of the functions' code objects, of the
constants that they read and of the compiler names it: no change is missed, and none of a comment, of another function of their files or of
the checkout's place makes it again.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from sim import machine_code_cache, ticks
from sim.cluster import fleet_core, fleet_events, fleet_moves, fleet_rooms, fleet_routes, fleet_state
from sim.cluster.fleet_core import serve_fleet
from sim.cost import batch, smooth, step_time, work
from sim.cost.graphs import GRAPH_TOKENS, captured_padding
from sim.engine import step_clock as iteration
from sim.engine.rows import (
    drafts,
    kv,
    llamacpp,
    log,
    loop,
    micro_batches,
    offload,
    parts,
    price,
    radix,
    sending,
    sglang,
    shares,
    steady,
    vllm,
    waiting,
)
from sim.engine.rows.price import Given
from sim.errors import SimctlError
from sim.files import scratch_folder
from sim.workload.trace import Trace

# Output tokens at which plain Python takes as long as loading machine code does (a tenth of a second), or making it (five).
# A request takes as long as so many, however short its answer.
TOKENS_OF_A_REQUEST = 200
WORTH_TOKENS = 50_000
WORTH_MAKING = 3_000_000
OFF = "SIMCTL_NO_MACHINE_CODE"  # set: plain Python always

_FORMULA: tuple[Any, ...] = (
    smooth.smooth_max,
    batch.chunk_pairs,
    batch.chunk_window_pairs,
    batch.from_sums,
    work.attention_work,
    work.launch_layers,
    step_time.kernels_s,
    step_time.linear_s,
    step_time.head_s,
    step_time.all_reduce_s,
    step_time.attention_s,
    step_time.exposed_launch_s,
    step_time.terms_of,
    step_time.total_s,
    iteration.charged,
    iteration.late_share,
    iteration.on_chord,
    iteration.staged_s,
    ticks.to_ticks,
)
_ENGINE = (log, kv, radix, sending, waiting, shares, steady, drafts, offload, vllm, sglang, llamacpp, parts, micro_batches, price, loop)
_FLEET = (fleet_state, fleet_events, fleet_routes, fleet_moves, fleet_rooms, fleet_core)

_BLOCK = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_loaded: dict[str, Any] = {}  # by layout of the columns
_tokens_so_far = [0]  # output tokens so far: a study of many small runs loads machine code as one long run does
_many: list[bool] = []  # not empty: many more are to come


def available() -> bool:
    """Whether the loop can be compiled."""
    return not os.environ.get(OFF) and _installed()


@cache
def _installed() -> bool:
    return find_spec("llvmlite") is not None


def worth(trace: Trace) -> bool:
    """Whether compiled code serves a trace, and as much as was asked about before, sooner, its loading included; or its making, where none
    is cached yet.
    """
    if not available() or _loaded:
        return available()
    if _many:
        return True
    tokens = int(trace.output_tokens.sum())
    _tokens_so_far[0] += tokens + TOKENS_OF_A_REQUEST * len(trace)
    return _tokens_so_far[0] >= WORTH_TOKENS and (tokens >= WORTH_MAKING or warm())


def expect_many() -> None:
    """Say that many traces are to be served: machine code is made for the first."""
    _many.append(True)


@cache
def warm() -> bool:
    """Whether machine code of these very sources lies in the cache, whole and in nobody else's reach."""
    folder = cache_directory()
    return available() and folder is not None and any(machine_code_cache.read(each) for each in sorted(folder.glob("*.*")))


def checked_cache() -> None:
    """Prove that the cache takes machine code, before it is made. Raises SimctlError."""
    folder = cache_directory()
    if folder is None:
        raise SimctlError("no folder for machine code: neither XDG_CACHE_HOME nor a home")
    try:
        machine_code_cache.prepare(folder)
    except OSError as error:
        raise SimctlError(f"machine code cannot be kept in {error.filename or folder}: {error.strerror}") from None


def resolved(w: fleet_state.Pools, given: Given, others: Given) -> Callable[..., int]:
    """sim.cluster.fleet_core.serve_fleet for these very arguments, compiled now or read from the cache."""
    records, pools = [np.array(each) for each in (*given, *others)], [w.entry] if w.decode is w.entry else [*w]
    columns = [column for pool in pools for column in _flat(pool)]
    layout = _layout(w.entry._fields, *(each.dtype for each in (*columns[: len(columns) // len(pools)], *records)))
    assert all(each.flags.c_contiguous and each.ndim == 1 for each in columns)
    addresses = np.array([each.ctypes.data for each in columns] * (len(w) // len(pools)), dtype=np.int64)
    block = np.array([each.ctypes.data for each in (addresses, *records)], dtype=np.int64)
    if layout not in _loaded:
        _loaded[layout] = _from_cache(layout, lambda: _made(w, records))
    function, address = _loaded[layout], block.ctypes.data
    keeps_alive = w, records, block, columns, addresses

    def serve(*_same: Any) -> int:
        assert keeps_alive
        return int(function(address))

    return serve


@cache
def _layout(*names_and_types: Any) -> str:
    """A name for columns of these types."""
    parts = [each.descr if isinstance(each, np.dtype) else each for each in names_and_types]
    return hashlib.sha256(str(parts).encode()).hexdigest()[:8]


def _from_cache(layout: str, make: Callable[[], bytes]) -> Any:
    """The function of a layout: of its library or its object file, made where neither is cached; a cache that takes no file is passed over.

    It is called with the address of its arguments. A library linked of an object file loads without LLVM, the sooner by 40 ms.
    """
    folder = cache_directory()
    if folder is None:
        return _linked(make(), None)
    library, kept = folder / f"{layout}.library", folder / f"{layout}.object"
    if (content := machine_code_cache.read(library)) and (function := _of_library(content)):
        return function
    code = machine_code_cache.read(kept)
    if code is None:
        code = make()
        with suppress(OSError):
            machine_code_cache.keep(kept, code)
    return _linked(code, library)


def _linked(code: bytes, library: Path | None) -> Any:
    """The function of an object file; kept as `library`, where there is a linker."""
    if library is not None and (linked := _link(library, code)):
        with suppress(OSError):
            machine_code_cache.keep(library, linked)
        if function := _of_library(linked):
            return function
    import llvmlite.binding as llvm

    jit = llvm.create_lljit_compiler(_target())
    owner = llvm.JITLibraryBuilder().add_object_img(code).add_current_process().export_symbol("from_block").link(jit, "simctl")
    function = _BLOCK(owner["from_block"])
    function.owners = owner, jit  # type: ignore[attr-defined]  # whose end would be that of the code
    return function


def _target() -> Any:
    """This machine, as LLVM knows it."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    return llvm.Target.from_default_triple().create_target_machine(
        llvm.get_host_cpu_name(), features, opt=2, reloc="pic", codemodel="default"
    )


def _of_library(content: bytes) -> Any:
    """The function of a library, or None where it does not load here: a home may be shared by systems of other C libraries."""
    try:
        return _BLOCK(("from_block", machine_code_cache.library(content)))
    except (OSError, AttributeError):
        return None


def _link(library: Path, code: bytes) -> bytes | None:
    """Content of a library of an object file, if the system's linker makes one."""
    import subprocess

    if not shutil.which("cc"):
        return None
    with suppress(OSError, subprocess.SubprocessError), scratch_folder(library) as folder:
        made, file = folder / "code.so", folder / "code.o"
        file.write_bytes(code)
        subprocess.run(["cc", "-shared", "-o", made, file, "-lm"], check=True, capture_output=True, timeout=60)
        return made.read_bytes()
    return None


def _made(w: fleet_state.Pools, records: list[Any]) -> bytes:
    """Such a file's content, for columns of these types."""
    import llvmlite.binding as llvm

    from sim.machine_code import Record, assembly, columns_of

    machine, kinds = _target(), (columns_of(w), *(Record(each.dtype) for each in records))
    module = llvm.parse_assembly(assembly(_whole_simulator, kinds, {captured_padding: _padding_of}, set(_compilable())))
    module.verify()
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    passes.getModulePassManager().run(module, passes)
    return bytes(machine.emit_object(module))


def _whole_simulator(
    w: fleet_state.Pools, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any, i: Any, j: Any, k: Any, m: Any
) -> int:
    return serve_fleet(w, Given(a, b, c, d, e, f), Given(g, h, i, j, k, m))


def _flat(columns: Any) -> Iterator[Any]:
    """The arrays of a named tuple, and of those inside it."""
    for each in columns:
        yield from _flat(each) if isinstance(each, tuple) else (each,)


def _compilable() -> Iterator[Any]:
    """All functions that are compiled."""
    yield from (*_FORMULA, _padding_of, _whole_simulator)
    for module in (*_ENGINE, *_FLEET):
        yield from (each for each in vars(module).values() if isinstance(each, FunctionType) and each.__module__ == module.__name__)


_PADDINGS = np.array([captured_padding(float(tokens)) for tokens in range(GRAPH_TOKENS + 1)])


def _padding_of(tokens: float) -> float:
    """sim.cost.graphs.captured_padding, looked up."""
    return _PADDINGS[int(tokens)] if tokens <= GRAPH_TOKENS else 0.0


@cache
def _machine() -> str:
    """The processor with all that it can: what machine code is made for. Whichever version compiled it, it says the same."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            first = takewhile(str.strip, file)
            return "".join(line for line in first if line.startswith(("model name", "flags", "Features", "CPU")))
    except OSError:
        return f"{platform.machine()} {platform.processor()}"


@cache
def cache_directory() -> Path | None:
    """Where machine code of these very sources is kept; None where this user has no home."""
    root = machine_code_cache.root()
    digest = hashlib.sha256(f"{_machine()} {sys.version} {_PADDINGS.tobytes().hex()}".encode())
    digest.update(Path(machine_code_cache.__file__).with_name("machine_code.py").read_bytes())
    for function in _compilable():
        digest.update(f"{function.__name__} {function.__defaults__} {_meaning(function)}".encode())
    return root and root / digest.hexdigest()[:16]


def _meaning(function: FunctionType) -> list[Any]:
    """Dependencies of a function's machine code: its instructions, and the values of the globals and module attributes that they read."""
    code, names = function.__code__, function.__globals__
    constants = [each for each in code.co_consts if each != function.__doc__]
    read: list[Any] = [code.co_code.hex(), constants, code.co_varnames, code.co_names]
    modules = [each for each in map(names.get, code.co_names) if isinstance(each, ModuleType)]
    for name in code.co_names:
        for value in (names.get(name), *(getattr(module, name, None) for module in modules)):
            if isinstance(value, int | float | str | tuple):
                read.append((name, value))
            elif isinstance(value, type):
                read.append((name, getattr(value, "_fields", None)))
            elif isinstance(value, FunctionType):
                read.append((name, value.__module__, value.__qualname__))
    return read
