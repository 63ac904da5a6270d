"""The question of a sweep: one question at many values, answered in several processes, kept in one zarr store."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sim.errors import SimctlError, UsageError
from sim.rates.fingerprint import code_fingerprint, formula_fingerprint
from sim.study.simulate_question import Simulate
from sim.sweeps.design import Axis, Design
from sim.sweeps.executor import local_pool, outcomes
from sim.sweeps.figures import figures_from, figures_of, variables_of
from sim.sweeps.store import open_store

if TYPE_CHECKING:
    import xarray as xr


class _Cell(NamedTuple):
    question: Any
    figures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sweep:
    """`question` of each combination of values of `axes`, in a zarr store that grows and resumes.

    `question` makes a Simulate, WhatIf, RegimeMap or Plan of the axes' values as keywords. `figures` are dotted names of its answer's
    plain data; of a simulation the usual ones are kept, too. With `samples` cells are a Latin hypercube, and axes may be ranges.
    `workers` above 1 are processes.
    """

    question: Callable[..., Any]
    axes: Mapping[str, Axis]
    store: str | Path
    figures: Sequence[str] = ()
    samples: int | None = None
    seed: int = 0
    workers: int = 1

    def answer(self) -> xr.Dataset:
        """The store as a dataset: a dimension for each axis, NaN where a cell could not be answered. UsageError where nothing is asked."""
        import xarray as xr

        design = Design(dict(self.axes), self.samples, self.seed)
        questions = [self.question(**dict(zip(design.axes, values, strict=True))) for values in design.cells()]
        kind = "simulate" if all(isinstance(each, Simulate) for each in questions) else "other"
        names = figures_of(kind, self.figures, list(design.axes))
        if not names:
            raise UsageError("a sweep of what? name figures of the answer")
        cells = {place: _Cell(each, names) for place, each in enumerate(questions)}
        about = {
            "axes": {key: str(axis) if not isinstance(axis, list | tuple) else list(map(str, axis)) for key, axis in design.axes.items()},
            "samples": design.samples, "samples_seed": design.seed, "figures": names,
            "formula": formula_fingerprint(), "code": code_fingerprint(),
        }  # fmt: skip
        keys = [digest([about["formula"], about["code"], each]) for each in questions]
        path = Path(self.store)
        with open_store(path, design, variables_of(kind, names), keys, about) as store:
            left = {place: cell for place, cell in cells.items() if not store.done[place]}
            for found in self._outcomes(left):
                for place, (figures, reason) in found:
                    store.put(place, figures, reason)
                store.flush()
        loaded: xr.Dataset = xr.open_zarr(path).load()
        return loaded

    def _outcomes(self, left: Mapping[int, _Cell]) -> Iterator[list[tuple[int, Any]]]:
        if self.workers > 1:
            yield from outcomes(left, _answered, partial(local_pool, self.workers))
            return
        for place, cell in left.items():
            yield [(place, _answered(cell))]


def sweep(question: Callable[..., Any], axes: Mapping[str, Axis], store: str | Path, **more: Any) -> xr.Dataset:
    """Answer `question` at every combination of `axes`, into `store`; `more` are further fields of Sweep."""
    return Sweep(question, axes, store, **more).answer()


def _answered(cell: _Cell) -> tuple[dict[str, Any], str]:
    """Figures by variable, or the reason why there is no answer."""
    kind = "simulate" if isinstance(cell.question, Simulate) else "other"
    try:
        answer = json.loads(json.dumps(cell.question.answer().to_dict(), default=_plain))
    except SimctlError as error:
        return {}, str(error)
    gpu = getattr(getattr(cell.question, "deployment", None), "gpu", None)
    return figures_from(kind, {} if gpu is None else {"gpu": gpu.name}, cell.figures, answer), ""


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)


def digest(value: Any) -> str:
    """sha256 of dataclasses, mappings, sequences, arrays, functions by name, and plain values, by content."""
    total = hashlib.sha256()

    def add(item: Any) -> None:
        if is_dataclass(item) and not isinstance(item, type):
            add([type(item).__qualname__, {field.name: getattr(item, field.name) for field in fields(item)}])
        elif isinstance(item, Mapping):
            add([list(pair) for pair in item.items()])
        elif isinstance(item, np.ndarray):
            total.update(item.tobytes())
        elif isinstance(item, partial):
            add([item.func, item.args, item.keywords])
        elif isinstance(item, list | tuple):
            total.update(b"[")
            for each in item:
                add(each)
            total.update(b"]")
        else:
            total.update(f"{getattr(item, '__qualname__', None) or repr(item)};".encode())

    add(value)
    return total.hexdigest()
