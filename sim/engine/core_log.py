"""The iteration log of the array engine, expanded from its rows: one for an iteration with prefill, one for a whole stretch of decode
iterations. Columns are made when they are asked for, and equal those that the event loop keeps (sim.results.record), bit by bit; only the
terms' seconds may differ in their last digit, where numpy and Python raise to powers differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

import sim.engine.core_state as at
from sim.cost.batch import BatchShape
from sim.cost.graphs import GRAPH_TOKENS, captured_padding
from sim.cost.step_time import NAMES, attention_s, step_terms
from sim.engine.config import EngineConfig
from sim.engine.interface import BUDGET, SLOTS
from sim.engine.replica_runs import Served
from sim.engine.step_clock import StepTime
from sim.ticks import TICK_S

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
BLOCK = 2**16  # rows looked at together
CHUNK_SUMS = (
    at.R_CHUNKS, at.R_CHUNK_TOKENS, at.R_CHUNK_CONTEXT, at.R_CHUNK_PAIRS, at.R_CHUNK_SAMPLED, at.R_HEAD_PAIRS, at.R_HEAD_CACHED,
)  # fmt: skip


class Expanded:
    """Iterations of one replica, in order; arrays of shape [iterations] unless said otherwise."""

    def __init__(self, served: Served, config: EngineConfig, steps: StepTime) -> None:
        self._rows, self._entries = served.rows, served.entries
        self._arrives = served.arrives
        self._config, self._steps = config, steps
        self.begins = np.cumsum(self._rows[:, at.R_N]) - self._rows[:, at.R_N]  # [row] its first iteration
        self.count = int(self._rows[:, at.R_N].sum())

    @cached_property
    def _row(self) -> Ints:
        return np.repeat(np.arange(len(self._rows)), self._rows[:, at.R_N])

    @cached_property
    def _later(self) -> Ints:
        """Place of each iteration in its row."""
        return np.arange(self.count) - np.repeat(self.begins, self._rows[:, at.R_N])

    def _of(self, column: int, later: int | None = None) -> Ints:
        """A column of the rows; iterations after the first of their row take the column `later`."""
        values: Ints = np.repeat(self._rows[:, column if later is None else later], self._rows[:, at.R_N])
        return values if later is None else self._beginning_with(self._rows[:, column], values)

    def _beginning_with(self, first: Ints, values: Ints) -> Ints:
        """The values of all iterations, in place of those that begin a row its `first`."""
        values[self.begins] = first
        return values

    def _first_only(self, column: int) -> Ints:
        return self._beginning_with(self._rows[:, column], np.zeros(self.count, dtype=np.int64))

    def _elapsed(self, n: Ints) -> Ints:
        """Ticks that `n` iterations of their row take."""
        return n * self._of(at.R_FIRST) + self._of(at.R_INCREMENT) * (n * (n - 1) // 2)

    @cached_property
    def decided(self) -> Ints:
        if not self._config.overlaps:
            return self._of(at.R_DECIDED) + self._elapsed(self._later)
        return self._beginning_with(self._rows[:, at.R_DECIDED], self._of(at.R_LAUNCHED) + self._elapsed(self._later - 1))

    @cached_property
    def started(self) -> Ints:
        if not self._config.overlaps:
            return self.decided
        rows = self._rows
        begins = np.where(rows[:, at.R_UNDER_WAY] > 0, rows[:, at.R_LAUNCHED], rows[:, at.R_DECIDED])
        return self._beginning_with(begins, self._of(at.R_LAUNCHED) + self._elapsed(self._later))

    @cached_property
    def ends(self) -> Ints:
        """Sending times of each iteration's tokens: without overlap at its end, else when its successor was launched, if there is one."""
        if not self._config.overlaps:
            return self._of(at.R_DECIDED) + self._elapsed(self._later + 1)
        sent, settled = np.append(self.started[1:], 0)[: self.count], self._rows[:, at.R_SETTLED]
        known = settled >= 0
        sent[(self.begins + self._rows[:, at.R_N] - 1)[known]] = settled[known]
        return sent

    @cached_property
    def waiting(self) -> Ints:
        rows = self._rows
        inside = np.cumsum(rows[:, at.R_ADMITTED]) - np.cumsum(rows[:, at.R_REQUEUED])
        seen = np.searchsorted(self.decided, self._arrives)  # who comes is counted from that decision on
        come = np.cumsum(np.bincount(seen, minlength=self.count))[: self.count]
        waiting: Ints = come - np.repeat(inside, rows[:, at.R_N])
        waiting[self.begins] += rows[:, at.R_PREEMPTED] - rows[:, at.R_REQUEUED]
        return waiting

    def _used(self) -> Ints:
        """Blocks: after the first iteration of a stretch, those grow that decodes fill."""
        entries, size = self._entries, self._config.block_size
        begin, end, offset = entries[entries[:, 0] == at.EPISODE, 1:4].T
        first = begin + -(offset + begin) % size
        counts = np.maximum((end - 1 - first) // size + 1, 0)
        clocks = np.repeat(first, counts) + size * (np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts))
        grown = np.cumsum(np.bincount(clocks, minlength=self.count + 1))
        clock = self._rows[:, at.R_CLOCK]
        places = self._later + np.repeat(clock, self._rows[:, at.R_N])
        left = np.repeat(self._rows[:, at.R_LEFT] - grown[clock], self._rows[:, at.R_N])
        return self._beginning_with(self._rows[:, at.R_USED], left + grown[places])

    def _lacks(self) -> Ints:
        decodes, lacks = self._of(at.R_DECODES), self._of(at.R_LACKS)
        late = np.where(self._config.max_num_batched_tokens <= decodes, BUDGET, lacks)
        late = np.where(decodes >= self._config.max_num_seqs, SLOTS, late)
        return np.where(self._later == 0, lacks, np.where(self.waiting > 0, late, 0))

    def column(self, name: str) -> Floats:
        """A column of the log, as sim.results.record names it."""
        made: dict[str, Callable[[], Any]] = {
            "start_s": lambda: self.started * TICK_S,
            "duration_s": lambda: self.ends * TICK_S - self.started * TICK_S,
            "decided_s": lambda: self.decided * TICK_S,
            "scheduled": lambda: self._of(at.R_DECODES) + self._first_only(at.R_SHARES),
            "running": lambda: self._of(at.R_RUNNING, at.R_DECODES),
            "waiting": lambda: self.waiting,
            "tokens": lambda: self._of(at.R_TOKENS, at.R_DECODES),
            "prefill_tokens": lambda: self._first_only(at.R_CHUNK_TOKENS),
            "kv_blocks_used": self._used,
            "admitted": lambda: self._first_only(at.R_ADMITTED),
            "preempted": lambda: self._first_only(at.R_PREEMPTED),
            "sampled": lambda: self._of(at.R_SAMPLED, at.R_DECODES),
            "itl_gaps": lambda: self._beginning_with(self._first_gaps(), self._of(at.R_DECODES)),
            "short_of": self._lacks,
            "decode_kv_s": lambda: self._decode_kv_s(slice(None)),
        }
        return np.asarray(made[name](), dtype=np.float64)

    def _shape(self, at_row: Ints, later: Any) -> tuple[BatchShape, Ints]:
        """The batches of some iterations by their rows and places there, and the ticks of host work that the GPU waited for."""
        steps = self._steps
        each, per_sequence, with_prefill, eager_ticks, piece_ticks, _ = steps.host_ticks

        def of(column: int) -> Ints:
            found: Ints = self._rows[at_row, column]
            return found

        first = later == 0
        batch = np.where(first, of(at.R_BATCH), of(at.R_DECODES))
        context = of(at.R_CONTEXT) + later * of(at.R_DECODES)
        chunks, tokens, read, pairs, sampled, *as_heads = (np.where(first, of(column), 0) for column in CHUNK_SUMS)
        rows, prefill = batch + tokens, chunks > 0
        ready = each + (batch + chunks) * per_sequence + prefill * with_prefill
        head_start = np.where(first, of(at.R_HEAD_START), np.int64(2**62)) if self._config.overlaps else 0
        left, exposed = np.maximum(head_start - ready, 0), np.maximum(ready - head_start, 0)
        eager, pieces = prefill & (rows > GRAPH_TOKENS), prefill & (rows <= GRAPH_TOKENS)
        launching = np.where(eager, eager_ticks, piece_ticks)
        late = np.where((left > 0) & (launching > 0), np.maximum(1.0 - left / np.maximum(launching, 1), 0.0), 1.0)
        counts = (batch, context, chunks, tokens, read, pairs, sampled, prefill, *as_heads)
        whole = [np.asarray(values, dtype=np.float64) for values in counts]
        b, c, n_chunks, n_tokens, n_read, n_pairs, n_sampled, has, head_pairs, head_cached = whole
        none = np.zeros(len(b))
        padding = captured_padding(rows)
        shape = BatchShape(
            b, c, none, c, n_chunks, n_tokens, n_read, n_pairs, none, none, b + n_sampled, has, eager * late, pieces * late, padding, none,
            head_pairs, head_cached,
        )  # fmt: skip
        return shape, exposed

    def terms(self, which: Any) -> Floats:
        """Seconds by term of some iterations, shape [them, terms]."""
        return self._terms(self._row[which], self._later[which])

    def term_totals(self) -> Floats:
        """Seconds by term of all iterations, shape [terms]. Of a stretch the first is taken, and two stand for those behind it: as many as
        sum up cubics exactly. Within a piece of a stretch contexts grow by a quarter at most, so terms are as good as that.
        """
        blocks = (np.arange(begin, min(begin + BLOCK, len(self._rows))) for begin in range(0, len(self._rows), BLOCK))
        found: Floats = np.sum([np.zeros(len(NAMES)), *map(self._totals_of, blocks)], axis=0)
        return found

    def _totals_of(self, rows: Ints) -> Floats:
        total: Floats = self._terms(rows, np.zeros(len(rows), dtype=np.int64)).sum(axis=0)
        behind, grows = self._rows[rows, at.R_N] - 1, self._rows[rows, at.R_DECODES] / np.maximum(self._rows[rows, at.R_CONTEXT], 1)
        pieces = np.where(behind > 0, 1 + np.asarray(4 * behind * grows, dtype=np.int64), 0)
        place = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        rows, behind, pieces = (np.repeat(each, pieces) for each in (rows, behind, pieces))
        begin, end = 1 + behind * place // pieces, 1 + behind * (place + 1) // pieces
        mean, sd = (begin + end - 1) / 2, np.sqrt(np.maximum((end - begin) ** 2 - 1, 0) / 12)
        for later in (mean - sd, mean + sd):
            total += (end - begin) / 2 @ self._terms(rows, later)
        return total

    def _terms(self, at_row: Ints, later: Any) -> Floats:
        shape, exposed = self._shape(at_row, later)
        found = step_terms(self._steps.work(shape), self._steps.given[1], np)
        table = np.stack([np.broadcast_to(np.asarray(term, dtype=np.float64), exposed.shape) for term in found], axis=1)
        table[:, 0] += exposed * TICK_S
        return table

    def _decode_kv_s(self, which: Any) -> Floats:
        work, rates = self._steps.work(self._shape(self._row[which], self._later[which])[0]), self._steps.given[1]
        decodes = attention_s(work._replace(prefill_kv_bytes=0.0, prefill_flops=0.0), rates)
        return np.where(self._of(at.R_BATCH, at.R_DECODES)[which] > 0, decodes, 0.0)

    def chunks(self) -> Ints:
        """(iteration, request, tokens, end) of every share of prefill, shape [shares, 4]."""
        found = self._entries[self._entries[:, 0] == at.CHUNK, 1:5].copy()
        if self._config.overlaps and len(found):
            # of one that loses its place while the share is under way, only the share's own tokens count
            width = int(found[:, 1].max()) + 1
            gone = {int(row - 1) * width + int(request) for row, request, under_way in self._setbacks() if under_way}
            if gone:
                under_way = np.isin(found[:, 0] * width + found[:, 1], list(gone))
                found[under_way, 3] = found[under_way, 2]
        found[:, 0] = self.begins[found[:, 0]]
        return found

    def _back_at_once(self) -> set[tuple[int, int]]:
        """(row, request) of those that lose their place in an iteration and sample in the same: their tokens do not pause."""
        lost, back = (
            {(row, request) for row, request in self._entries[self._entries[:, 0] == kind, 1:3].tolist()}
            for kind in (at.LOST_PLACE, at.CAME_BACK)
        )
        return lost & back

    def _first_gaps(self) -> Ints:
        """[row] gaps that end with its first iteration: of all who sampled, but first tokens, and of those who never paused."""
        counts: Ints = self._rows[:, at.R_SAMPLED] - self._rows[:, at.R_FRESH]
        for row, _ in self._back_at_once():
            counts[row] += 1
        return counts

    def _setbacks(self) -> list[tuple[int, int, int]]:
        entries = self._entries
        lost = np.isin(entries[:, 0], (at.LOST_PLACE, at.LOST_PREFILL, at.LEFT_EARLY))
        return [(row, request, under_way) for row, request, under_way in entries[lost, 1:4].tolist() if row < len(self._rows)]

    def events(self) -> list[tuple[int, int, float, int, str]]:
        """(iteration, order within it, seconds, request, what) of all setbacks; what is "paused", "back" or "lost"."""
        found: list[tuple[int, int, float, int, str]] = []
        at_once = self._back_at_once()
        for kind, row, request, _, _ in self._entries[self._entries[:, 0] >= at.LOST_PLACE].tolist():
            i = int(self.begins[row]) if row < len(self._rows) else -1
            if i < 0 or kind == at.LEFT_EARLY:
                continue
            pauses = (row, request) not in at_once
            if kind == at.CAME_BACK and pauses:
                found.append((i, 1, float(self.ends[i] * TICK_S), request, "back"))
            if kind == at.CAME_BACK:
                continue
            if kind == at.LOST_PLACE and pauses:
                found.append((i, 0, float(self.ends[i - 1] * TICK_S), request, "paused"))
            found.append((i, 2, float(self.started[i] * TICK_S), request, "lost"))
        return sorted(found, key=lambda each: each[:2])


class LazyColumns(Mapping[str, Floats]):
    """Columns by name, made when they are asked for and kept."""

    def __init__(self, names: Sequence[str], make: Callable[[str], Floats]) -> None:
        self._names, self._make, self._made = names, make, {}  # type: ignore[var-annotated]

    def __getitem__(self, name: str) -> Floats:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._made:
            self._made[name] = self._make(name)
        found: Floats = self._made[name]
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
