"""Results of the engine in rows: the log as it fills, and its columns as sim.results.record names them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.cost.batch import BatchShape
from sim.cost.step_time import NAMES, step_terms
from sim.engine.rows import layout as at
from sim.engine.rows.layout import Core, row_of, table_of
from sim.engine.step_clock import StepTime
from sim.ticks import TICK_S

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
KV = NAMES._fields.index("kv")
ALWAYS_NAMED = {"prefill_tokens": "chunk_tokens", "sampled": "logits"}  # parts of a batch shape in the log
NAMED = ALWAYS_NAMED | {"decode_kept": "decode_context"}
TOGETHER = 16  # parts of the log looked at together
NAMES_OF_LOG = [each.name for each in fields(at.LogRow)]


class Columns:
    """Columns of rows that come part by part. Of what is mostly nought the rest alone is kept, and of counts 32 bits where these hold
    them.
    """

    def __init__(self) -> None:
        self._parts: list[dict[str, tuple[Ints | None, NDArray[Any]]]] = []
        self._counts: list[int] = []

    @property
    def count(self) -> int:
        """Rows."""
        return sum(self._counts)

    def add(self, rows: NDArray[Any]) -> None:
        """The next rows (records of layout.LogRow)."""
        words = (
            np.ascontiguousarray(rows).view(np.int64).reshape(-1, len(NAMES_OF_LOG)).T.copy()
        )  # of 64 bits each: read where they lie together
        self._parts.append({name: _packed(column, rows.dtype[name]) for name, column in zip(NAMES_OF_LOG, words, strict=True)})
        self._counts.append(len(rows))

    def __getitem__(self, name: str) -> NDArray[Any]:
        found = np.zeros(self.count, dtype=at.dtype_of(at.LogRow)[name])
        begin = 0
        for part, count in zip(self._parts, self._counts, strict=True):
            where, values = part[name]
            found[begin : begin + count][slice(None) if where is None else where] = values
            begin += count
        return found

    def pieces(self) -> Iterator[Columns]:
        """The same in pieces of several parts."""
        for begin in range(0, len(self._parts), TOGETHER):
            piece = Columns()
            piece._parts, piece._counts = self._parts[begin : begin + TOGETHER], self._counts[begin : begin + TOGETHER]
            yield piece


def _packed(words: Ints, kind: np.dtype[Any]) -> tuple[Ints | None, NDArray[Any]]:
    """Where values other than 0 are (None: anywhere), and these, or all, of words that stand for numbers of a kind."""
    if 4 * np.count_nonzero(words) < len(words):
        there = np.flatnonzero(words)
        return there, words[there].view(kind)
    if kind == np.int64 and len(words) and words.min() >= -(2**31) and words.max() < 2**31:
        return None, words.astype(np.int32)
    return None, words.view(kind).copy()


class Log:
    """Rows moved out of the log of a replica."""

    def __init__(self) -> None:
        self._rows, self._further = Columns(), Columns()
        self._owners: list[Ints] = []
        self._entries: list[Any] = []

    def drain(self, e: Core, s: Any) -> None:
        """Move all rows but that of the iteration under way, which may still change."""
        kept = int(s.under_way >= 0)
        count = int(s.rows) - kept
        first, entry = int(s.first_row), int(s.first_entry)
        rows, entries = _part(e.log, at.LogRow, first, count), _part(e.entries, at.EntryRow, entry, int(s.entries)).copy()
        if (more := rows["more"] > 0).any() or self._further.count:
            owners = self._rows.count + np.cumsum(~more) - ~more  # the iteration of each row
            entries["row"] = owners[entries["row"] - s.logged]
            self._owners.append(owners[more])
            self._further.add(rows[more])
            rows = rows[~more]
        self._rows.add(rows)
        self._entries.append(entries)
        if kept:
            log: Any = e.log
            log[first] = log[first + count]
            row_of(e.iterations, s.first_iteration + s.under_way).row = first
            if not isinstance(log, np.ndarray):
                log.pop(first + count, None)
        s.rows, s.entries, s.logged = kept, 0, s.logged + count

    def served(self, calls: Ints) -> Served:
        """All of it."""
        owners = np.concatenate(self._owners) if self._owners else np.zeros(0, dtype=np.int64)
        return Served(self._rows, np.concatenate(self._entries), calls, self._further, owners)


def _part(rows: Any, row: type, first: int, count: int) -> NDArray[Any]:
    if isinstance(rows, np.ndarray):
        return rows[first : first + count]
    return table_of([rows.pop(place) for place in range(first, first + count)], row, count)


@dataclass(frozen=True, slots=True)
class Served:
    """Log of a replica: columns of its rows (layout.LogRow), and `entries` (layout.EntryRow), whose requests are places; `calls` are their
    names elsewhere. Of iterations of several micro-batches a row is the last one's; those before are `further` ones, of their `owners`.
    """

    rows: Columns
    entries: NDArray[Any]
    calls: Ints
    further: Columns
    owners: Ints


def logged_shape(column: Callable[[str], Any], plain: bool) -> BatchShape:
    """The batch of columns of the log (layout.LogRow). They hold what decodes read of their contexts where attention is not `plain`."""
    named = NAMED if plain else ALWAYS_NAMED
    return BatchShape(*(column(named.get(name, name)) for name in BatchShape._fields))


class Expanded:
    """Iterations of one replica, in order; arrays of shape [iterations] unless said otherwise."""

    def __init__(self, served: Served, steps: StepTime) -> None:
        self.rows, self.entries, self._steps, self._served = served.rows, served.entries, steps, served
        self.count = served.rows.count

    @property
    def ends(self) -> Ints:
        """Sending times of each iteration's tokens."""
        found: Ints = self.rows["sent"]
        return found

    def column(self, name: str) -> Floats:
        """A column of the log, as sim.results.record names it."""
        rows = self.rows
        made: dict[str, Callable[[], Any]] = {
            "start_s": lambda: rows["started"] * TICK_S,
            "duration_s": lambda: rows["sent"] * TICK_S - rows["started"] * TICK_S,
            "decided_s": lambda: rows["decided"] * TICK_S,
            "kv_blocks_used": lambda: rows["used"],
            "itl_gaps": lambda: rows["gaps"],
            "short_of": lambda: rows["lacks"],
            "decode_kv_s": lambda: np.where(rows["decode_kv_s"] < 0.0, self._terms[:, KV], rows["decode_kv_s"]),
        }
        return np.asarray(made[name]() if name in made else rows[name], dtype=np.float64)

    def shape(self, which: Any, rows: Columns | None = None) -> BatchShape:
        """The batches of some iterations, of all or of some rows."""
        column = rows.__getitem__ if rows else self._whole
        return logged_shape(lambda name: column(name)[which], self._steps.policy.plain)

    def terms(self, which: Any, rows: Columns | None = None) -> Floats:
        """Seconds by term of some iterations, of all or of some rows: shape [them, terms]."""
        table = self._terms_of_rows(which, rows)
        return table if rows or not self._served.further.count else table + self._further_terms[which]

    @cached_property
    def _further_terms(self) -> Floats:
        """Those of further micro-batches by iteration: shape [iterations, terms]."""
        found = np.zeros((self.count, len(NAMES)))
        np.add.at(found, self._served.owners, self._terms_of_rows(slice(None), self._served.further))
        return found

    def _terms_of_rows(self, which: Any, rows: Columns | None) -> Floats:
        shape = self.shape(which, rows)
        found = step_terms(self._steps.work(shape), self._steps.given[1], np)
        table = np.stack([np.broadcast_to(np.asarray(term, dtype=np.float64), shape.decode_seqs.shape) for term in found], axis=1)
        table[:, 0] += (rows["extra"] if rows else self._whole("extra"))[which] * TICK_S
        return table

    @cached_property
    def _whole(self) -> Callable[[str], NDArray[Any]]:
        """Columns by name, kept: terms are asked for iteration by iteration."""
        return cache(self.rows.__getitem__)

    @cached_property
    def _terms(self) -> Floats:
        return self.terms(slice(None))

    def term_totals(self) -> Floats:
        """Seconds by term of all iterations, shape [terms]."""
        pieces = (*self.rows.pieces(), *self._served.further.pieces())
        parts = (self.terms(slice(None), rows).sum(axis=0) for rows in pieces)
        found: Floats = np.sum([np.zeros(len(NAMES)), *parts], axis=0)
        return found

    def chunks(self) -> Ints:
        """(iteration, request, tokens, end) of every share of prefill, shape [shares, 4]."""
        found = self.entries[self.entries["kind"] == at.CHUNK]
        return np.stack([found[name] for name in ("row", "request", "first", "second")], axis=1)

    def losses(self, last_sent: Ints) -> tuple[Ints, Ints]:
        """(ticks, request) of those that lost their place, but had more than their last token to come."""
        found = self.entries[self.entries["kind"] == at.LOST_PLACE]
        found = found[found["row"] < self.count]
        started = self.rows["started"][found["row"]]
        kept = last_sent[found["request"]] > started
        return started[kept], found["request"][kept]

    def pauses(self) -> tuple[Ints, Ints, Ints]:
        """(ticks of the last token before, ticks of the next one, request) where a token did not come in the next iteration."""
        found = self.entries[self.entries["kind"] == at.CAME_BACK]
        return found["first"], found["second"], found["request"]


class LazyColumns(Mapping[str, Floats]):
    """Columns by name, made when they are asked for and kept."""

    def __init__(self, names: Sequence[str], make: Callable[[str], Floats]) -> None:
        self._names, self._make = names, make
        self._made: dict[str, Floats] = {}

    def __getitem__(self, name: str) -> Floats:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._made:
            self._made[name] = self._make(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
