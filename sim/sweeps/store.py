"""Figures of a sweep on disk: one zarr store, readable by xarray from the first cell on, resumed where it stopped.

A store appears whole, with NaN everywhere. Cells are put into arrays in memory; `flush` writes the chunks that changed, `done` and
`check` last. Every file is replaced, never changed in place, so a kill at any moment leaves a store that says the truth of what is done.
`check` is a hash of what the cell depends on and of its figures: a damaged cell, or one of another trace file, is not taken for done.
What ends up on disk depends on the cells alone, not on the order in which they came or how often the sweep was stopped.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sim.errors import SimctlError, UsageError
from sim.extras import install_hint
from sim.files import replaced_directory
from sim.sweeps.design import Design

if TYPE_CHECKING:
    import xarray as xr

FORMAT = "simctl sweep 1"
BOUNDS = ("low", "high")
LONGEST_REASON = 120  # characters
CHUNK_CELLS = 4096
SHARE = 0.1  # of the time, at most, goes into writing
STATE = ("reason", "check", "done")  # in the order of writing


@dataclass(frozen=True, slots=True)
class Variable:
    """A figure: its unit and what it is. `width`: values a cell; two are the low and high end of an interval."""

    name: str
    units: str
    meaning: str
    width: int = 1


def needs_zarr() -> Any:
    """The zarr package. Raises SimctlError where it is not installed."""
    try:
        import zarr
    except ImportError:
        raise SimctlError(f"a sweep is kept with zarr: {install_hint('sweep')}") from None
    return zarr


class Store:
    """The open store of a sweep: `figures` by name are (cells,) or (cells, 2), float64; `keys` say what each cell depends on."""

    def __init__(self, path: Path, design: Design, variables: Sequence[Variable], keys: Sequence[str]) -> None:
        self.path, self.variables = path, variables
        self._shape, self._keys = design.shape, keys
        zarr = needs_zarr()
        with zarr.config.set({"array.write_empty_chunks": True}):  # a chunk has a file whatever is in it
            try:
                self._group = zarr.open_group(str(path), mode="r+", zarr_format=2, use_consolidated=False)
            except Exception as error:
                raise self._damaged("its group", error) from None
            self._kept: dict[str, Any] = {}
            self.arrays = {name: self._read(name, count) for name, count in _columns(variables).items()}
        self._unwritten: set[int] = set()
        self._written_s, self._took_s = 0.0, 0.0
        done = self.arrays["done"] = self.arrays["done"].astype(bool)
        good = np.array([bool(done[i]) and self._check(i) == self.arrays["check"][i] for i in range(len(keys))], dtype=bool)
        self.damaged = int((done & ~good).sum())
        self._clear(~good)  # figures of a cell that was being written, too

    @property
    def done(self) -> NDArray[np.bool_]:
        """Whether each cell is done."""
        done: NDArray[np.bool_] = self.arrays["done"]
        return done

    def put(self, place: int, figures: Mapping[str, float | Sequence[float]], reason: str = "") -> None:
        """Keep the figures of a cell, NaN for those it lacks; `reason`: why there are none."""
        self._clear(place)
        for name, value in figures.items():
            self.arrays[name][place] = value
        self.arrays["reason"][place] = reason[:LONGEST_REASON]
        self.arrays["check"][place] = self._check(place)
        self.arrays["done"][place] = True
        self._unwritten.add(place)

    def flush(self, now: bool = False) -> None:
        """Write what is new, unless that would take more than SHARE of the time; `now`: in any case."""
        began = time.monotonic()
        if not self._unwritten or (not now and began - self._written_s < self._took_s / SHARE):
            return
        rows, width = _chunk_rows(self._shape), max(1, len(self._keys) // max(1, self._shape[0] if self._shape else 1))
        for name in (*(variable.name for variable in self.variables), *STATE):
            array = self._kept[name]
            values = self.arrays[name].reshape(array.shape)
            blocks = sorted({place // width // rows for place in self._unwritten})
            try:
                for part in [slice(block * rows, (block + 1) * rows) for block in blocks] if self._shape else [...]:
                    array[part] = values[part]
            except OSError:
                raise
            except Exception as error:  # a codec that is told nonsense reads, and does not write
                raise self._damaged(name, error) from None
        self._unwritten.clear()
        self._written_s, self._took_s = time.monotonic(), time.monotonic() - began

    def _read(self, name: str, count: int) -> NDArray[Any]:
        try:
            self._kept[name] = self._group[name]
            array = np.asarray(self._kept[name][...])
        except Exception as error:  # zarr, its codecs and the file system have no error in common
            raise self._damaged(name, error) from None
        return np.array(array.reshape((len(self._keys), count) if count > 1 else (len(self._keys),)))

    def _damaged(self, name: str, error: Exception) -> UsageError:
        return UsageError(f"{self.path}: damaged: {name} cannot be read and written ({type(error).__name__}); remove it, or choose another")

    def _clear(self, place: int | NDArray[np.bool_]) -> None:
        for variable in self.variables:
            self.arrays[variable.name][place] = np.nan
        self.arrays["reason"][place], self.arrays["check"][place], self.arrays["done"][place] = "", 0, False

    def _check(self, place: int) -> np.uint64:
        digest = hashlib.sha256(self._keys[place].encode())
        for variable in self.variables:
            digest.update(self.arrays[variable.name][place].tobytes())
        digest.update(str(self.arrays["reason"][place]).encode())
        return np.uint64(int.from_bytes(digest.digest()[:8], "little"))


@contextmanager
def open_store(path: Path, design: Design, variables: Sequence[Variable], keys: Sequence[str], about: Mapping[str, Any]) -> Iterator[Store]:
    """The store of a sweep, made where there is none; what is new is written when the context ends, however it ends.

    `about` is plain data that says what the sweep is. Raises UsageError for a path that holds something else: no sweep, a sweep of
    another question or another version, a damaged one, or one that another process writes.
    """
    needs_zarr()
    said = {name: value if isinstance(value, str) else json.dumps(value, sort_keys=True) for name, value in about.items()}
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        with replaced_directory(path, ()) as staging:
            _created(staging, design, variables, said)
    with _locked(path):
        _must_be(path, said)
        for left in path.rglob("*.partial"):  # of a kill while zarr wrote a file
            left.unlink()
        store = Store(path, design, variables, keys)
        try:
            yield store
        finally:
            store.flush(now=True)


def _created(path: Path, design: Design, variables: Sequence[Variable], about: Mapping[str, str]) -> None:
    import numcodecs
    import xarray as xr

    shape, dims = design.shape, design.dims
    data: dict[str, Any] = {}
    for variable in variables:
        more = (variable.width,) if variable.width > 1 else ()
        attrs = {"units": variable.units, "long_name": variable.meaning}
        data[variable.name] = (
            (*dims, *(["bound" if variable.width == 2 else "pair"] if more else [])),
            np.full((*shape, *more), np.nan),
            attrs,
        )
    data["reason"] = (dims, np.full(shape, "", dtype=f"<U{LONGEST_REASON}"), {"long_name": "why the cell has no figures"})
    data["check"] = (dims, np.zeros(shape, dtype=np.uint64), {"long_name": "hash of what the cell depends on and of its figures"})
    data["done"] = (dims, np.zeros(shape, dtype=bool), {"long_name": "whether the cell has been answered"})
    coords: dict[str, Any] = {key: (dim, _coordinate(values)) for key, (dim, values) in design.coords().items()}
    dataset: xr.Dataset = xr.Dataset(data, {**coords, "bound": np.array(BOUNDS)}, {"format": FORMAT, **about})
    chunk = (_chunk_rows(shape), *shape[1:]) if shape else ()
    codec = numcodecs.Zstd(level=1, checksum=True)
    encoding: dict[str, Any] = {str(name): {"compressors": [codec]} for name in dataset.variables}
    for name, (_, values, _) in data.items():
        encoding[name] |= {"chunks": (*chunk, *values.shape[len(shape) :])} if shape else {}
    # Format 3 has no settled form for text yet. Nothing in the metadata changes later, so the consolidated copy stays true.
    dataset.to_zarr(path, mode="w", zarr_format=2, consolidated=True, encoding=encoding, write_empty_chunks=True)


def _coordinate(values: Sequence[Any]) -> NDArray[Any]:
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return np.array(values)
    return np.array([str(value) for value in values])


def _columns(variables: Sequence[Variable]) -> dict[str, int]:
    return {variable.name: variable.width for variable in variables} | dict.fromkeys(STATE, 1)


def _chunk_rows(shape: Sequence[int]) -> int:
    """Places along the first dimension that share a chunk."""
    if not shape:
        return 1
    width = max(1, int(np.prod(shape[1:], dtype=int)))
    return max(1, min(shape[0], CHUNK_CELLS // width))


def _must_be(path: Path, about: Mapping[str, str]) -> None:
    try:
        attrs = json.loads((path / ".zattrs").read_text(encoding="utf-8"))
        is_sweep = attrs.get("format") == FORMAT
    except (OSError, ValueError, AttributeError):
        is_sweep = False
    if not is_sweep:
        raise UsageError(f"{path}: there, and not a sweep of this version's format; choose another path")
    for name, value in about.items():
        if attrs.get(name) != value:
            there, here = _apart(str(attrs.get(name)), value)
            raise UsageError(
                f"{path}: a sweep that differs in its {name.replace('_', ' ')}: {there} there, {here} here; remove it, or choose another"
            )


def _apart(there: str, here: str, most: int = 60) -> tuple[str, str]:
    """Two texts from a little before they differ."""
    same = next((i for i, (a, b) in enumerate(zip(there, here, strict=False)) if a != b), min(len(there), len(here)))
    begin = 0 if max(len(there), len(here)) <= most else max(0, same - 20)
    return there[begin : begin + most], here[begin : begin + most]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Refuse to write beside another process. The lock ends with the process that holds it."""
    try:
        import fcntl
    except ImportError:  # no such locks there
        yield
        return
    try:
        lock = (path / ".zgroup").open("rb")
    except OSError:
        raise UsageError(f"{path}: there, and not a sweep; choose another path") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{path}: another process writes this sweep") from None
        yield
