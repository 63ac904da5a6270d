"""The engine in rows and its fleet compiled with numba, where that is installed and the work is worth its start-up.

What is compiled is the plain source: the code objects of sim.engine.rows, and of the formula's own functions, with each other in place of
the plain ones. The machine code needs nothing but `pow` of the C library. It is kept in a cache and loaded without numba, whose import
takes longer than most runs. A digest of these code objects and of the constants that they read names it: no change is missed, and none of
a comment, of another function of their files or of the checkout's place makes it again.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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

# Output tokens at which plain Python takes as long as loading machine code does (a tenth of a second), or making it (half a minute).
# A request takes as long as so many, however short its answer.
TOKENS_OF_A_REQUEST = 200
WORTH_TOKENS = 50_000
WORTH_MAKING = 25_000_000
OFF = "SIMCTL_NO_NUMBA"  # set: plain Python always

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
# modules of the engine, those that are called before those that call them
_ENGINE = (log, kv, radix, sending, waiting, shares, steady, drafts, offload, vllm, sglang, llamacpp, parts, micro_batches, price, loop)
_FLEET = (fleet_state, fleet_events, fleet_routes, fleet_moves, fleet_rooms, fleet_core)

# nothing is allocated: no references are counted
_HOW: dict[str, Any] = {"error_model": "numpy", "_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_PASSED = "columns by address"  # how machine code gets them (sim.engine.machine_columns): another way is another name in the cache
_BLOCK = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)
_loaded: dict[str, Any] = {}  # by layout of the columns
_tokens_so_far = [0]  # output tokens so far: a study of many small runs loads machine code as one long run does


def available() -> bool:
    """Whether the loop can be compiled."""
    return not os.environ.get(OFF) and _installed()


@cache
def _installed() -> bool:
    return find_spec("numba") is not None


def worth(trace: Trace) -> bool:
    """Whether compiled code serves a trace, and as much as was asked about before, sooner, its loading included; or its making, where none
    is cached yet.
    """
    if not available() or _loaded:
        return available()
    tokens = int(trace.output_tokens.sum())
    _tokens_so_far[0] += tokens + TOKENS_OF_A_REQUEST * len(trace)
    return _tokens_so_far[0] >= WORTH_TOKENS and (tokens >= WORTH_MAKING or warm())


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
    records, columns = [np.array(each) for each in (*given, *others)], list(_flat(w))
    layout = _layout(w.entry._fields, *(each.dtype for each in (*columns, *records)))
    result, error = ctypes.c_int64(), ctypes.c_void_p()
    assert all(each.flags.c_contiguous and each.ndim == 1 for each in columns)
    words = np.array([word for each in columns for word in (each.ctypes.data, each.size)], dtype=np.int64)
    arguments = ctypes.addressof(result), ctypes.addressof(error), words.ctypes.data, *(each.ctypes.data for each in records)
    block = np.array(arguments, dtype=np.int64)
    if layout not in _loaded:
        _loaded[layout] = _from_cache(layout, len(block), lambda: _made(w, given, others))
    function, address = _loaded[layout], block.ctypes.data
    keeps_alive = w, records, block, error, columns, words

    def serve(*_same: Any) -> int:
        if function(address):
            raise RuntimeError(f"machine code failed on {len(keeps_alive)} columns")
        return result.value

    return serve


@cache
def _layout(*names_and_types: Any) -> str:
    """A name for columns of these types."""
    parts = [each.descr if isinstance(each, np.dtype) else each for each in names_and_types]
    return hashlib.sha256(str(parts).encode()).hexdigest()[:8]


def _from_cache(layout: str, words: int, make: Callable[[], bytes]) -> Any:
    """The function of a layout: of its library or its object file, made where neither is cached; a cache that takes no file is passed over.

    It is called with the address of its arguments, so many words. A library linked of an object file loads without LLVM, the sooner by
    40 ms.
    """
    folder = cache_directory()
    if folder is None:
        return _linked(make(), words, None)
    library, kept = folder / f"{layout}.library", folder / f"{layout}.object"
    if (content := machine_code_cache.read(library)) and (function := _of_library(content)):
        return function
    code = machine_code_cache.read(kept)
    if code is None:
        code = make()
        with suppress(OSError):
            machine_code_cache.keep(kept, code)
    return _linked(code, words, library)


def _linked(made: bytes, words: int, library: Path | None) -> Any:
    """The function of a line with its name, then an object file; kept as `library`, where there is a linker."""
    import llvmlite.binding as llvm

    name, _, code = made.partition(b"\n")
    call = _call(name.decode(), words)
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
    if library is not None and (linked := _link(library, code, machine.emit_object(llvm.parse_assembly(call)))):
        with suppress(OSError):
            machine_code_cache.keep(library, linked)
        if function := _of_library(linked):
            return function
    jit = llvm.create_lljit_compiler(machine)
    builder = llvm.JITLibraryBuilder().add_object_img(code).add_ir(call).add_current_process().export_symbol("from_block")
    owner = builder.link(jit, "simctl")
    function = _BLOCK(owner["from_block"])
    function.owners = owner, jit  # type: ignore[attr-defined]  # whose end would be that of the code
    return function


def _of_library(content: bytes) -> Any:
    """The function of a library, or None where it does not load here: a home may be shared by systems of other C libraries."""
    try:
        return _BLOCK(("from_block", machine_code_cache.library(content)))
    except (OSError, AttributeError):
        return None


def _call(name: str, words: int) -> str:
    """LLVM of a function that calls `name` with the words of a block."""
    loads = "".join(f"%p{i} = getelementptr i64, ptr %block, i64 {i}\n%a{i} = load i64, ptr %p{i}\n" for i in range(words))
    passed = ", ".join(f"i64 %a{i}" for i in range(words))
    return f"""declare i32 @"{name}"({", ".join(["i64"] * words)})
        define i32 @from_block(ptr %block) {{
        {loads} %status = call i32 @"{name}"({passed})
        ret i32 %status }}"""


def _link(library: Path, *objects: bytes) -> bytes | None:
    """Content of a library of these, if the system's linker makes one."""
    import subprocess

    if not shutil.which("cc"):
        return None
    with suppress(OSError, subprocess.SubprocessError), scratch_folder(library) as folder:
        files = [folder / f"{number}.o" for number in range(len(objects))]
        for file, content in zip(files, objects, strict=True):
            file.write_bytes(content)
        made = folder / "code.so"
        subprocess.run(["cc", "-shared", "-o", made, *files, "-lm"], check=True, capture_output=True, timeout=60)
        return made.read_bytes()
    return None


def _made(w: fleet_state.Pools, given: Given, others: Given) -> bytes:
    """Such a file's content, for columns of these types."""
    import numba

    from sim.engine.machine_columns import Columns

    padding = _padding()

    def padding_of(tokens: float) -> float:
        return padding[int(tokens)] if tokens <= GRAPH_TOKENS else 0.0

    found: dict[Any, Any] = {captured_padding: numba.njit(padding_of, **_HOW)}
    for function in _compilable():
        names = function.__globals__
        space = names | {name: found[each] for name, each in names.items() if isinstance(each, FunctionType) and each in found}
        found[function] = numba.njit(FunctionType(function.__code__, space, function.__name__, function.__defaults__), **_HOW)
    kinds = (Columns(w), *map(numba.typeof, (*given, *others)))
    with _optimised_once():
        found[_whole_simulator].compile(kinds)
    made = found[_whole_simulator].overloads[kinds]
    _, _, (code, _) = made.library.serialize_using_object_code()
    return bytes(made.fndesc.llvm_func_name.encode() + b"\n" + code)


@contextmanager
def _optimised_once() -> Iterator[None]:
    """Optimise and emit the whole once. numba does so for every function with all that it calls, which takes twice as long; where its
    parts have other names than here, it does.
    """
    from numba.core import codegen, cpu

    owners: tuple[tuple[Any, str], ...] = (
        (getattr(codegen, "CPUCodeLibrary", None), "_optimize_final_module"),
        (getattr(codegen, "CPUCodeLibrary", None), "_finalize_final_module"),
        (getattr(cpu, "CPUContext", None), "get_executable"),
    )
    kept: list[tuple[Any, str, Any]] = [(owner, name, getattr(owner, name, None)) for owner, name in owners]
    if any(method is None for _, _, method in kept):
        yield
        return

    def only_whole(method: Any, otherwise: Any = None) -> Any:
        def found(self: Any, *given: Any) -> Any:
            library = given[0] if given else self
            if _whole_simulator.__name__ in library.name:
                return method(self, *given)
            return otherwise(library) if otherwise else None

        return found

    def unfinished(library: Any) -> None:
        library._finalized = True

    def never_called(library: Any) -> Any:
        return [library].append  # a function of C that is like no other: it stands for one that Python would call

    def optimised(library: Any) -> None:
        for function in library._final_module.functions:
            if not function.is_declaration and _whole_simulator.__name__ not in function.name:
                function.linkage = "internal"  # called from here alone: to be inlined, and then dropped
        kept[0][2](library)

    made = (only_whole(optimised), only_whole(kept[1][2], unfinished), only_whole(kept[2][2], never_called))
    for (owner, name, _), method in zip(kept, made, strict=True):
        setattr(owner, name, method)
    try:
        yield
    finally:
        for owner, name, method in kept:
            setattr(owner, name, method)


def _whole_simulator(
    w: fleet_state.Pools, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any, i: Any, j: Any, k: Any, m: Any
) -> int:
    return serve_fleet(w, Given(a, b, c, d, e, f), Given(g, h, i, j, k, m))


def _flat(columns: Any) -> Iterator[Any]:
    """The arrays of a named tuple, and of those inside it."""
    for each in columns:
        yield from _flat(each) if isinstance(each, tuple) else (each,)


def _compilable() -> Iterator[Any]:
    """All functions that are compiled, those that are called before those that call them."""
    yield from _FORMULA
    for module in (*_ENGINE, *_FLEET):
        yield from _functions(module)
    yield _whole_simulator


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
    digest = hashlib.sha256(f"{_machine()} {sys.version} {_HOW} {_PASSED} {_padding().tobytes().hex()}".encode())
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
