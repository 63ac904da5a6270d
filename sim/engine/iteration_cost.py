"""Price of an iteration given as objects: its requests put into rows (sim.engine.rows.price), for engines that are stepped one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from sim.cost.batch import DENSE, BatchShape
from sim.cost.graphs import GRAPH_TOKENS
from sim.cost.pipeline import Chunk
from sim.cost.rates import Rates
from sim.cost.step_time import NAMES, Terms, step_terms
from sim.engine.interface import Iteration, StepPrice
from sim.engine.rows import layout as at
from sim.engine.rows.made import given_of, take_prices
from sim.engine.rows.price import occupied, price
from sim.engine.rows.served import logged_shape
from sim.engine.step_clock import StepTime
from sim.specs.attention_policy import AttentionPolicy
from sim.specs.model import ModelSpec
from sim.specs.precision import Precision
from sim.ticks import TICK_S

Share = tuple[int, int, int, int]
"""Prompt, generated and computed tokens of a request, and those that an iteration computes."""


class _Unknown(dict[int, Any]):
    """Prices by place, -1 until they are known."""

    def __missing__(self, place: int) -> int:
        return -1


class IterationCost:
    """Prices iterations of one deployment at fixed rates (floats): the ticks of `steps`, and the terms of the formula beside them.

    Pure decode iterations take their ticks from chords, so their terms add up to the duration within 1e-4 of it.
    """

    terms: tuple[str, ...] = NAMES

    def __init__(
        self, model: ModelSpec, precision: Precision, rates: Rates, *, tp: int = 1, policy: AttentionPolicy = DENSE, **more: Any
    ) -> None:
        """`more` are further settings of StepTime: micro-batches, graph sizes, the cost of drafting."""
        self.steps = StepTime(model, precision, rates, tp=tp, policy=policy, **more)
        self._rows = 0  # whose work is in the tables
        self._e: at.Core | None = None

    def host(self, iteration: Iteration) -> int:
        """Ticks for which an iteration keeps the host, its requests at whatever stage."""
        shares = _shares(iteration)
        _, s, it = self._filled(shares)
        it.reads_prompt = int(any(n > 1 and (not generated or done + n <= prompt + generated) for prompt, generated, done, n in shares))
        return occupied(s, it)

    def __call__(self, iteration: Iteration, head_start: int = 0) -> StepPrice:
        """Ticks of the iteration, before its requests advance, with the host `head_start` ticks ahead, and its seconds by term.

        Host work that shows and drafting count as fixed cost, reloaded KV as link.
        """
        logged = self._priced(_shares(iteration), iteration.places, iteration.shared, head_start)
        last = logged[-1]
        parts = [step_terms(self.steps.work(self._shape(row)), self.steps.given[1]) for row in logged]
        terms = parts[0] if len(parts) == 1 else Terms(*map(sum, zip(*parts, strict=True)))
        if last.extra:
            terms = terms._replace(fixed=terms.fixed + last.extra * TICK_S)
        kv_s = terms.kv if last.decode_kv_s < 0.0 else last.decode_kv_s
        return StepPrice(int(self._e.engines[0].priced) if self._e else 0, terms, int(last.prefill_tokens), kv_s)

    def batches(self, iteration: Iteration) -> list[BatchShape]:
        """The batches that an iteration is computed as."""
        return [self._shape(row) for row in self._priced(_shares(iteration), iteration.places, iteration.shared, 0)]

    def batches_of(
        self, contexts: Iterable[int], chunks: Iterable[Chunk], places: Sequence[int] = (), shared: tuple[int, int] = (0, 0)
    ) -> list[BatchShape]:
        """The same of decodes and chunks, given by their tokens; `places` are slot numbers of those, then of these."""
        shares = [(context, 1, context, 1) for context in contexts]
        shares += [(end + 1 - rows, 0, end - n, n) for n, end, rows in chunks]
        return [self._shape(row) for row in self._priced(shares, places, shared, 0)]

    def _priced(self, shares: Sequence[Share], places: Sequence[int], shared: tuple[int, int], head_start: int) -> list[Any]:
        """Price an iteration. Returns its rows of the log."""
        e, s, it = self._filled(shares, places)
        (it.shared, it.common), it.head_start, s.rows = shared, head_start, 0
        price(e, s, 0, given_of(self.steps))
        return [e.log[row] for row in range(s.rows)]

    def _filled(self, shares: Sequence[Share], places: Sequence[int] = ()) -> tuple[at.Core, at.EngineRow, at.IterationRow]:
        """Rows of an iteration."""
        e = self._tables(sum(n for *_, n in shares), len(shares))
        s, it = e.engines[0], e.iterations[0]
        it.shares, it.tokens, it.decodes, it.context = len(shares), 0, 0, 0
        for place, (prompt, generated, computed, n) in enumerate(shares):
            row, share = e.requests[place], e.shares[place]
            row.prompt, row.generated, row.computed = prompt, generated, computed + n
            row.seat = places[place] if places else place
            share.request, share.tokens = place, n
            it.tokens += n
            if n == 1 and prompt <= computed < prompt + generated:
                it.decodes += 1
                it.context += computed
        return e, s, it

    def _tables(self, tokens: int, sequences: int) -> at.Core:
        """A core whose tables hold iterations of so many tokens and sequences."""
        if self._e is not None and tokens <= self._rows and sequences < len(self._e.padding):
            return self._e
        self._rows = most = 1 << max(tokens, GRAPH_TOKENS).bit_length()
        s, rows, steps = at.EngineRow(keep=1, block=1), most + GRAPH_TOKENS, self.steps
        take_prices(s, steps)
        kept: dict[str, Any] = {name: _Unknown() for name in ("chords", "by_rows", "heads", "draft_by_rows", "draft_heads")}
        tables = {"row_works": steps.row_works(rows), "draft_row_works": steps.draft.row_works(rows) if steps.draft else np.zeros(0)}
        tables["expert_works"] = steps.expert_works(rows * s.stages) if s.parts > s.stages else np.zeros(0)
        columns: dict[str, Any] = {name: at.Lazily(row) for name, row in at.ROWS.items()} | {"engines": [s]}
        columns |= {name: table.ravel().data for name, table in tables.items()}
        empty: dict[str, Any] = {name: [] for name in at.Core._fields}
        self._e = at.Core(**(empty | columns | kept | {"padding": steps.decode_paddings(2 * sequences).tolist()}))
        return self._e

    def _shape(self, row: Any) -> BatchShape:
        return logged_shape(lambda name: getattr(row, name), self.steps.policy.plain)


def _shares(iteration: Iteration) -> list[Share]:
    return [(r.prompt_tokens, r.generated_tokens, r.computed_tokens, n) for r, n in iteration.scheduled]
