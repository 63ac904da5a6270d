"""The replica's price list: the bill of an iteration as scheduled, settled at one set of rates."""

from __future__ import annotations

from sim.bill import DENSE, iteration_bill, mixed_shape
from sim.engine.steptime import StepTime, split, to_ticks
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

    def __init__(self, model: ModelSpec, precision: Precision, rates: Rates, *, tp: int = 1, policy: AttentionPolicy = DENSE) -> None:
        self.steps = StepTime(model, precision, rates, tp=tp, policy=policy)
        self._model = model
        self._precision = precision
        self._rates = rates
        self._tp = tp
        self._policy = policy

    def __call__(self, iteration: Iteration) -> StepPrice:
        """Ticks of the iteration, and its seconds by term."""
        contexts, chunks = split(iteration)
        shape = mixed_shape(self._model, contexts, chunks, self._policy)
        terms = step_terms(iteration_bill(self._model, shape, self._precision, self._policy, self._tp), self._rates)
        if self.steps.jumps and not chunks:
            ticks = self.steps.stretch(len(contexts), sum(contexts)).first
        else:
            ticks = to_ticks(sum(terms))
        return StepPrice(ticks, terms, sum(chunk[0] for chunk in chunks))
