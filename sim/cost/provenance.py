"""Provenance of rates and overheads as data: what kind of evidence, and of which GPU, dtype, TP degree and engine.

Code asks `origin` and `covers`; words are made from them where something is printed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any

from sim.specs.lookup import key


class Origin(StrEnum):
    """Kind of evidence behind a number."""

    IN_PROCESS = "in process"  # an engine stepped in process, a synchronisation after every iteration
    SERVED = "served"  # a served engine, by its log or its benchmark
    KERNELS = "kernels"  # microbenchmarks of single kernels and links
    POPULATION = "population"  # hierarchy over measured GPUs
    PUBLISHED = "published"  # numbers that others printed
    PRIOR = "prior"  # declared: datasheet x efficiency, or an order of magnitude
    GIVEN = "given"  # by the caller


MEASURED = frozenset({Origin.IN_PROCESS, Origin.SERVED, Origin.KERNELS})


@dataclass(frozen=True, slots=True)
class Provenance:
    """Origin of a rate, a set of rates or an overhead. Empty fields say that no measurement names it."""

    origin: Origin
    evidence: str = ""  # for readers; no code looks at it
    gpu: str = ""
    dtypes: tuple[str, ...] = ()  # of weights
    tps: tuple[int, ...] = ()
    engines: tuple[str, ...] = ()  # name and version
    models: tuple[str, ...] = ()  # by catalogue name
    kinds: tuple[str, ...] = ()  # of serving (sim.rates.kinds), of a server whose log the rates were learnt from
    adjusted: tuple[str, ...] = ()  # what was done to it since, for readers
    converged: bool = True

    @property
    def measured(self) -> bool:
        """Whether it was learnt from measurements of ours of the GPU itself."""
        return self.origin in MEASURED

    @property
    def stepped(self) -> bool:
        """Whether engines stepped in process stand behind it, of this GPU or of others."""
        return self.origin in (Origin.IN_PROCESS, Origin.POPULATION)

    def covers(self, gpu: str, dtype: str, tp: int, engine: str = "", model: str = "") -> dict[str, bool]:
        """Whether this GPU, weight dtype, TP degree and (if named) engine and model were measured."""
        parts = {"GPU": self.measured and gpu == self.gpu, "dtype": dtype in self.dtypes, "tp": tp in self.tps}
        parts |= {"engine": any(engine.split()[0] == known.split()[0] for known in self.engines)} if engine else {}
        # a longer name is the same model with a longer context: Qwen2.5-7B-1M
        return parts | ({"model": any(key(model).startswith(key(known)) for known in self.models)} if model and self.models else {})

    def after(self, what: str) -> Provenance:
        """The same evidence, with one more thing done to the number."""
        return replace(self, adjusted=(*self.adjusted, what))

    def text(self) -> str:
        """One clause for readers."""
        return "; ".join((self.evidence or str(self.origin), *self.adjusted)) + ("" if self.converged else " (NOT CONVERGED)")

    def to_json(self) -> dict[str, Any]:
        """Plain data, empty fields left out."""
        return {name: value for name, value in asdict(self).items() if value not in ((), "")}


GIVEN = Provenance(Origin.GIVEN, "given")


def from_json(body: Mapping[str, Any]) -> Provenance:
    """The inverse of `to_json`. Raises ValueError or TypeError for anything else."""
    known = {field.name for field in fields(Provenance)}
    if not set(body) <= known:
        raise ValueError(f"unknown provenance {sorted(set(body) - known)}")
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in body.items()}
    return Provenance(**{**values, "origin": Origin(body["origin"])})


def outside_measured(source: Provenance, gpu: str, dtype: str, tp: int, engine: str = "", model: str = "") -> dict[str, str]:
    """One clause for each part of a deployment that lies outside what was measured, by part."""
    parts = {"GPU": gpu, "dtype": dtype, "tp": tp, "engine": engine, "model": model}
    had = {"GPU": [source.gpu] if source.gpu else [], "dtype": source.dtypes, "tp": source.tps, "engine": source.engines}
    had["model"] = source.models
    covered = source.covers(gpu, dtype, tp, engine, model)
    names = {part: ", ".join(map(str, had[part])) or "none" for part in covered}
    return {part: f"{part} {parts[part]} (measured: {names[part]})" for part, known in covered.items() if not known}
