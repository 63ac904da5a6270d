"""The GB10's served rows as bursts: iterations of the engine's own scheduler, priced at any rates, and the figures that were published.

Each row is a burst of n requests. Its iterations do not depend on the rates, so they are scheduled once. Of each engine and model, every
other number of clients may be learnt from (`learnt`); the rows between them are a test set.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.cost.batch import BatchShape
from sim.cost.rates import Rates
from sim.cost.step_time import step_time_s
from sim.cost.work import Work
from sim.engine.config import EngineConfig
from sim.engine.interface import Iteration, Scheduler
from sim.engine.iteration_cost import IterationCost
from sim.engine.schedulers import LlamaCppScheduler, VllmScheduler
from sim.rates.priors import prior_rates
from sim.specs.draft_heads import draft_head
from sim.specs.gpus import get_gpu
from sim.specs.model import ModelSpec
from sim.specs.models import get_model
from sim.specs.precision import Precision
from sim.study.deployment import default_batch_limits
from studies.population.published_rates import GB10_MODELS, UBATCH
from studies.reference_tables import Row, table
from studies.replication.gb10_runs import GENERATED, burst, first_tokens

Array = NDArray[np.float64]
LLAMA = "llama.cpp-paged"
ENGINES = {LLAMA: "llamacpp", "vllm": "vllm"}  # as the tables call them, and as `--engine` does
MODELS = tuple(GB10_MODELS)
PHASES = ("40", "41", "47")  # both engines side by side: 1 to 256 clients of the mixture of experts, 1 to 128 of the dense model
FIGURES = ("agg_tps", "decode_agg_tps", "ttft_mean_ms")
PROMPT_TAIL = 4  # tokens of a prompt that llama.cpp computes in an iteration of their own, of models with recurrent state


@dataclass(frozen=True)
class Burst:
    """A burst as scheduled: the pieces that its iterations are computed as, where each iteration starts among them, and how many requests
    wait for their first token in each [iteration].
    """

    clients: int
    pieces: Sequence[Work]
    starts: NDArray[np.intp]
    waiting: Array

    @functools.cached_property
    def sums(self) -> Array:
        """Seconds of the whole, of what follows the last first token, and the mean TTFT: weights of the pieces [3, piece]."""
        each = np.repeat(np.arange(len(self.starts)), np.diff([*self.starts, len(self.pieces)]))
        return np.stack([np.ones(len(each)), self.waiting[each] == 0, self.waiting[each] / self.clients])

    def figures(self, rates: Rates) -> Array:
        """FIGURES [figure, draw] at rates [draw]."""
        return in_figures(self.clients, self.sums @ priced(self.pieces, rates))


def in_figures(clients: int, seconds: Array) -> Array:
    """FIGURES of `Burst.sums` in seconds, and these of FIGURES."""
    made = clients * GENERATED
    return np.stack([made / seconds[0], made / seconds[1], 1e3 * seconds[2]])


def in_seconds(clients: int, figures: Array) -> Array:
    """What `Burst.sums` of the pieces must be where FIGURES were published."""
    made = clients * GENERATED
    return np.array([made / figures[0], made / figures[1], figures[2] / 1e3])


@dataclass(frozen=True, eq=False)
class ServedRow:
    """A published row: its engine and model as the tables call them, clients, prompt tokens of all, and FIGURES. `learnt`: not of the test
    set.
    """

    engine: str
    model: str
    clients: int
    prompt_tokens: int
    printed: Array
    learnt: bool


def served_rows(engine: str, model: str) -> list[ServedRow]:
    """Rows of an engine and model by their clients; every other one, from the first, may be learnt from."""

    def of(name: str) -> dict[int, Row]:
        rows = (r for r in table("gb10", name) if r["phase"] in PHASES and (r["engine"], r["model"]) == (engine, model))
        return {int(r["n_concurrent"]): r for r in rows}

    printed, order = of("serving"), sorted(of("serving"))
    # prompts are as long as in the largest burst that is learnt from: there the rounding of printed figures shows least
    prompt = float(of("derived_serving_identities")[order[::2][-1]]["implied_prompt_tokens_per_request"])
    return [
        ServedRow(engine, model, n, round(n * prompt), np.array([float(printed[n][f]) for f in FIGURES]), n in order[::2]) for n in order
    ]


@functools.cache
def steps(engine: str, model: str) -> IterationCost:
    """Prices of iterations: llama.cpp's in micro-batches of streams, vLLM's padded to captured graphs. Only shapes and work are asked."""
    settings: dict[str, Any] = {"gpu": get_gpu("GB10")} if engine == "vllm" else {"micro_batch": UBATCH, "streams": True}
    return _priced_by_shape(get_model(GB10_MODELS[model]), settings)


def steps_of_head(model: str) -> IterationCost:
    """The same for a model's own head of multi-token prediction, under llama.cpp."""
    return _priced_by_shape(draft_head(get_model(GB10_MODELS[model]), "mtp"), {"micro_batch": UBATCH, "streams": True})


def _priced_by_shape(model: ModelSpec, settings: Mapping[str, Any]) -> IterationCost:
    precision = Precision("nvfp4", "bf16")
    return IterationCost(model, precision, prior_rates(get_gpu("GB10"), precision, draws=1).point, **settings)


def works(pricing: IterationCost, batches: Sequence[BatchShape]) -> list[Work]:
    """The pieces that one iteration is computed as."""
    return [pricing.steps.work(shape) for shape in batches]


def stacked(pieces: Sequence[Work]) -> Work:
    """The pieces as arrays [piece, 1]."""
    return Work(*(np.reshape(values, (-1, 1)) for values in zip(*pieces, strict=True)))


def priced(pieces: Sequence[Work], rates: Rates) -> Array:
    """Seconds [piece, draw] at rates [draw]."""
    return np.asarray(step_time_s(stacked(pieces), rates, np))


def scheduled(row: ServedRow) -> Burst:
    """The burst of a row by its engine's defaults."""
    return replay(row.engine, row.model, row.clients, row.prompt_tokens)


def replay(engine: str, model: str, clients: int, prompt_tokens: int, settings: Mapping[str, Any] | None = None) -> Burst:
    """Schedule a burst of `clients` requests with `prompt_tokens` together, a quarter of them in time for the first decision."""
    scheduler: Scheduler
    if engine == "vllm":
        seqs, budget = default_batch_limits(get_gpu("GB10"))
        scheduler = VllmScheduler(EngineConfig(max_num_seqs=seqs, max_num_batched_tokens=budget, max_model_len=4096))
    else:
        options = {"prompt_tail_tokens": PROMPT_TAIL, **(settings or {})}
        scheduler = LlamaCppScheduler(
            EngineConfig("llamacpp", max_num_seqs=clients, max_num_batched_tokens=2048, max_model_len=512, options=options)
        )
    pricing = steps(engine, model)
    pieces: list[Work] = []
    starts: list[int] = []

    def record(iteration: Iteration) -> int:
        starts.append(len(pieces))
        pieces.extend(works(pricing, pricing.batches(iteration)))
        return 1

    _, first = first_tokens(scheduler, burst(clients, prompt_tokens), record, max(clients // 4, 1))
    ended = np.array(list(first.values()))
    waiting = np.array([np.sum(ended > step) for step in range(len(starts))], dtype=float)
    return Burst(clients, pieces, np.array(starts), waiting)
