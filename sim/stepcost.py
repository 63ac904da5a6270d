"""The replica's price list: the bill of an iteration as scheduled, settled at one set of rates."""

from __future__ import annotations

from sim.bill import DENSE, iteration_bill, mixed_shape
from sim.engine.types import Iteration
from sim.policy import AttentionPolicy
from sim.precision import Precision
from sim.price import Terms, step_terms
from sim.rates import Rates
from sim.replica import StepPrice
from sim.specs.model import ModelSpec


class BillCost:
    """Prices iterations of one deployment at fixed rates (floats).

    A request that computes one token and has sampled before is a decode; any other share of the iteration is a prefill chunk.
    """

    terms: tuple[str, ...] = Terms._fields

    def __init__(self, model: ModelSpec, precision: Precision, rates: Rates, *, tp: int = 1, policy: AttentionPolicy = DENSE) -> None:
        self._model = model
        self._precision = precision
        self._rates = rates
        self._tp = tp
        self._policy = policy

    def __call__(self, iteration: Iteration) -> StepPrice:
        """Seconds of the iteration, by term."""
        contexts: list[float] = []
        chunks: list[tuple[float, float, bool]] = []
        prefill_tokens = 0
        for request, tokens in iteration.scheduled:
            start = request.computed_tokens
            if tokens == 1 and start >= request.prompt_tokens:
                contexts.append(start)
            else:
                end = start + tokens
                chunks.append((tokens, end, end >= request.known_tokens))
                prefill_tokens += tokens
        shape = mixed_shape(self._model, contexts, chunks, self._policy)
        terms = step_terms(iteration_bill(self._model, shape, self._precision, self._policy, self._tp), self._rates)
        return StepPrice(sum(terms), terms, prefill_tokens)
