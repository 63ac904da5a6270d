"""The replica's price list: the bill of an iteration as scheduled, settled at one set of rates."""

from __future__ import annotations

from typing import Any

from sim.bill import DENSE, Shape, spread
from sim.engine.boost import Boost
from sim.engine.steptime import StepTime, split
from sim.engine.ticks import TICK_S, to_ticks
from sim.engine.types import Iteration
from sim.policy import AttentionPolicy
from sim.precision import Precision
from sim.price import Terms, step_terms
from sim.rates import Rates
from sim.replica import StepPrice
from sim.specs.model import ModelSpec


class BillCost:
    """Prices iterations of one deployment at fixed rates (floats): the ticks of StepTime, and the terms of the formula beside them.

    Pure decode iterations take their ticks from StepTime's chords, so their terms add up to the duration within 1e-4 of it.
    """

    terms: tuple[str, ...] = Terms._fields

    def __init__(
        self, model: ModelSpec, precision: Precision, rates: Rates, *, tp: int = 1, policy: AttentionPolicy = DENSE, **more: Any
    ) -> None:
        """`more` are further settings of StepTime: micro-batches, graph sizes, the cost of drafting."""
        self.steps = StepTime(model, precision, rates, tp=tp, policy=policy, **more)
        self._rates = rates
        self._rested = self.steps.boost.rested(rates)

    @property
    def boost(self) -> Boost:
        """What products take less on a GPU that has rested."""
        return self.steps.boost

    def products(self, iteration: Iteration) -> int:
        """Ticks of products in the iteration as decided, before its requests advance."""
        return self.steps.products_of(iteration)

    def host(self, iteration: Iteration) -> int:
        """Ticks for which the iteration keeps the host."""
        return self.steps.host(iteration)

    def __call__(self, iteration: Iteration, head_start: int = 0, rested: bool = False) -> StepPrice:
        """Ticks of the iteration with the host `head_start` ticks ahead, on a GPU that has `rested` or has not, and its seconds by term
        (host work that shows and drafting under the fixed cost, reloaded KV under the link).
        """
        rates = self._rested if rested else self._rates
        contexts, chunks = split(iteration)
        shown, left = self.steps.shown(len(iteration.scheduled), bool(chunks), head_start)
        parts = [
            self._terms(self.steps.launched_late(shape, left), rates) for shape in self.steps.shapes(contexts, chunks, iteration.places)
        ]
        terms = parts[0] if len(parts) == 1 else Terms(*map(sum, zip(*parts, strict=True)))
        if self.steps.jumps and not chunks and not iteration.reloads:
            drafting = reloading = 0
            own = self.steps.stretch(len(contexts), sum(contexts), spread(contexts)).first
        else:
            own, drafting = sum(to_ticks(sum(part)) for part in parts), self.steps.drafting(contexts, chunks)
            late = self.steps.late(len(contexts), chunks, own, left)
            own += late
            terms = terms._replace(launch=terms.launch + late * TICK_S)
            reloading = self.steps.reloading(iteration, own)
        if shown or drafting or reloading:
            terms = terms._replace(fixed=terms.fixed + (shown + drafting) * TICK_S, link=terms.link + reloading * TICK_S)
        return StepPrice(shown + own + drafting + reloading, terms, sum(n for n, _, rows in chunks if rows <= 1))

    def _terms(self, shape: Shape, rates: Rates) -> Terms:
        return step_terms(self.steps.bill(shape), rates)
