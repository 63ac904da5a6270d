"""How the decodes of a measured cell were dealt out to multiprocessors, from what a table of cells says of their contexts.

Where contexts are equal, or known one by one, they are dealt out as they were; else their mean and standard deviation say what to expect.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from sim.bill import Bill, coefficients
from sim.dealing import idle_keys, idle_when_dealt
from sim.precision import Precision
from sim.specs.model import ModelSpec

# The ragged cells of an engine grid: so many sequences, log-uniform from the shortest to the longest (hw.cells.ragged_cells).
SIZES, SHORTEST, LONGEST = (8, 32, 96), 128, 32768
LOG_UNIFORM = 1.34  # standard deviation of such contexts, as a share of their mean
CELLS = "*.cells.json"  # beside tables: cells that were asked for, context by context


def with_idle(bill: Bill, model: ModelSpec, precision: Precision, tp: int, contexts: Sequence[float], apart: float = 0.0) -> Bill:
    """The bill of decodes at these contexts, dealt out as they are: or, with `apart`, as expected of that standard deviation (tokens)."""
    c = coefficients(model, precision, tp)
    if not contexts or not c.kv_heads:
        return bill
    total, seqs = sum(contexts), len(contexts)
    idle = idle_keys(c.kv_heads, seqs, total, (seqs * apart) ** 2) if apart else _dealt(tuple(contexts), c.kv_heads)
    return bill._replace(idle_kv_bytes=idle * c.kv_token_bytes)


@lru_cache(maxsize=4096)
def _dealt(contexts: tuple[float, ...], kv_heads: int) -> float:
    return idle_when_dealt(contexts, kv_heads)


def contexts_of(row: Mapping[str, Any], mean: float, asked: Mapping[str, Sequence[float]]) -> tuple[list[float], float]:
    """(contexts of the cell's decodes, of this mean; their standard deviation, where they are not known one by one). `asked`: those of
    cells by label. A decode runs on from where it was placed, all of them as far.
    """
    seqs = round(float(row["decode_seqs_median"]))
    known = asked.get(str(row["label"]), ())
    if len(known) == seqs and seqs:
        later = mean - sum(known) / seqs
        return [context + later for context in known], 0.0
    apart = float(row.get("context_sd_tokens", np.nan))
    if np.isnan(apart):
        apart = LOG_UNIFORM * mean if str(row["kind"]) == "ragged" else 0.0
    return [mean] * seqs, min(apart, mean * sqrt(seqs)) if seqs > 1 else 0.0


def asked_of(path: Path, attrs: Mapping[str, Any]) -> dict[str, Sequence[float]]:
    """Contexts by label of the unequal decodes of a measurement file, as far as they are known: drawn from its seed or listed beside."""
    seed = str(attrs.get("seed", ""))
    found = dict(_drawn(int(seed))) if seed.isdigit() else {}
    for beside in sorted(path.parent.glob(CELLS)):
        found |= _listed(beside)
    return found


def _label(contexts: Sequence[float]) -> str:
    return f"ragged:{len(contexts)}ragged{int(sum(contexts))}"


@cache
def _listed(path: Path) -> dict[str, Sequence[float]]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return {_label(cell["contexts"]): cell["contexts"] for cell in cells if cell["kind"] == "ragged"}


@cache
def _drawn(seed: int) -> dict[str, Sequence[float]]:
    rng = np.random.default_rng(seed)
    each = [np.exp(rng.uniform(np.log(SHORTEST), np.log(LONGEST), size)).astype(int).tolist() for size in SIZES]
    return {_label(contexts): contexts for contexts in each}
