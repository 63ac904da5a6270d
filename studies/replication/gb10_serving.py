"""The GB10 serving tables, predicted by halves: rates from every other number of clients, the rows between them unseen.

Each row is a burst of n requests, re-enacted by the engine's own scheduler. Its iterations do not depend on the rates, so they are
scheduled once and priced by the formula at any rates. Per engine and model, a least-squares fit in the logarithms of the rates starts from
the packaged posterior under llama.cpp, which knows its batched bench and no served row.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from sim.cost.parts import Chunk
from sim.cost.rates import UNITS, Rates
from sim.cost.step_time import step_time_s
from sim.cost.work import Work
from sim.engine.config import EngineConfig
from sim.engine.interface import Iteration, Scheduler
from sim.engine.llamacpp import LlamaCppScheduler
from sim.engine.schedulers import VllmScheduler
from sim.engine.step_clock import StepTime, split
from sim.rates.posterior import engine_posterior, rates_for
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.specs.precision import Precision
from sim.study.deployment import default_batch_limits
from studies.population.published_rates import GB10_MODELS, PRINTED, UBATCH
from studies.reference_tables import Row, table
from studies.replication.gb10_runs import GENERATED, burst, first_tokens

Array = NDArray[np.float64]
ENGINES = ("llama.cpp-paged", "vllm")
PHASES = ("40", "41", "47")  # both engines side by side: 1 to 256 clients of the mixture of experts, 1 to 128 of the dense model
FIGURES = ("agg_tps", "decode_agg_tps", "ttft_mean_ms")
# One GPU that replays graphs and reads all its KV shows no launches, no selection, no host link and no other GPU.
UNSEEN = ("launch_layer_s", "c1_s", "c1_unit_s", "link_bytes_per_s", "gather_s", "comm_bytes_per_s", "comm_latency_s")
FREE = tuple(rate for rate in UNITS if rate not in UNSEEN)
FREE_SD = 0.5  # log sd of every rate before the fit, a factor of 2.3 either way: another engine has other kernels
NOISE_SD = float(np.hypot(PRINTED, 0.05))  # log sd of a figure: as printed, and as other engines lie off the formula (declared)
DRAWS = 1000


@dataclass(frozen=True)
class Replay:
    """A burst as scheduled: the pieces that its iterations are computed as, where each iteration starts among them, and how many requests
    wait for their first token in each.
    """

    clients: int
    pieces: Sequence[Work]
    starts: NDArray[np.intp]
    waiting: Array

    def figures(self, rates: Rates) -> Array:
        """FIGURES [figure, draw] at rates [draw]."""
        steps_s = np.add.reduceat(priced(self.pieces, rates), self.starts, axis=0)
        wall_s, last_s = steps_s.sum(0), steps_s[self.waiting > 0].sum(0)
        made = self.clients * GENERATED
        return np.stack([made / wall_s, made / (wall_s - last_s), 1e3 * self.waiting @ steps_s / self.clients])


@dataclass(frozen=True)
class Half:
    """Rates [draw] of one engine and model from the rows `seen`, and FIGURES of the others: printed [figure], predicted [figure, draw]."""

    engine: str
    model: str
    seen: tuple[int, ...]
    rates: Rates
    unseen: Mapping[int, tuple[Array, Array]]


@functools.cache
def steps(engine: str, model: str) -> StepTime:
    """Prices of iterations: llama.cpp's in micro-batches of streams, vLLM's padded to captured graphs."""
    gpu, precision = get_gpu("GB10"), Precision("nvfp4", "bf16")
    spec, point = get_model(GB10_MODELS[model]), rates_for(gpu, precision, path=engine_posterior(gpu, "llamacpp")).point
    if engine == "vllm":
        return StepTime(spec, precision, point, gpu=gpu)
    return StepTime(spec, precision, point, micro_batch=UBATCH, streams=True)


def works(engine: str, model: str, contexts: list[int], chunks: list[Chunk], places: Sequence[int]) -> list[Work]:
    """The pieces that one iteration is computed as."""
    pricing = steps(engine, model)
    return [pricing.work(shape) for shape in pricing.shapes(contexts, chunks, places)]


def priced(pieces: Sequence[Work], rates: Rates) -> Array:
    """Seconds [piece, draw] at rates [draw]."""
    stacked = Work(*(np.reshape(values, (-1, 1)) for values in zip(*pieces, strict=True)))
    return np.asarray(step_time_s(stacked, rates, np))


def replay(engine: str, model: str, clients: int, prompt_tokens: int, settings: Mapping[str, Any] | None = None) -> Replay:
    """Schedule a burst of `clients` requests with `prompt_tokens` together, a quarter of them in time for the first decision."""
    scheduler: Scheduler
    if engine == "vllm":
        seqs, budget = default_batch_limits(get_gpu("GB10"))
        scheduler = VllmScheduler(EngineConfig(max_num_seqs=seqs, max_num_batched_tokens=budget, max_model_len=4096))
    else:
        options = {"prompt_tail_tokens": 4, **(settings or {})}
        scheduler = LlamaCppScheduler(
            EngineConfig("llamacpp", max_num_seqs=clients, max_num_batched_tokens=2048, max_model_len=512, options=options)
        )
    pieces: list[Work] = []
    starts: list[int] = []

    def record(iteration: Iteration) -> int:
        starts.append(len(pieces))
        pieces.extend(works(engine, model, *split(iteration), iteration.places))
        return 1

    _, first = first_tokens(scheduler, burst(clients, prompt_tokens), record, max(clients // 4, 1))
    ended = np.array(list(first.values()))
    waiting = np.array([np.sum(ended > step) for step in range(len(starts))], dtype=float)
    return Replay(clients, pieces, np.array(starts), waiting)


@functools.cache
def half(engine: str, model: str) -> Half:
    """One engine and model, calibrated on every other number of clients."""

    def of(name: str) -> dict[int, Row]:
        rows = (r for r in table("gb10", name) if r["phase"] in PHASES and (r["engine"], r["model"]) == (engine, model))
        return {int(r["n_concurrent"]): r for r in rows}

    printed = {n: np.array([float(row[f]) for f in FIGURES]) for n, row in of("serving").items()}
    order = sorted(printed)
    seen = order[::2]
    # prompts are as long as in the largest burst calibrated on: there the rounding of printed figures shows least
    prompt = float(of("derived_serving_identities")[seen[-1]]["implied_prompt_tokens_per_request"])
    replays = {n: replay(engine, model, n, round(n * prompt)) for n in order}
    rates = _fit([replays[n] for n in seen], [printed[n] for n in seen])
    return Half(engine, model, tuple(seen), rates, {n: (printed[n], noisy(replays[n].figures(rates))) for n in order[1::2]})


def noisy(figures: Array, sd: float | Array = NOISE_SD) -> Array:
    """Figures [figure, draw] of a run, with errors of log sd `sd` that the rates do not hold."""
    return np.asarray(figures * np.exp(sd * np.random.default_rng(0).standard_normal(figures.shape)))


def _fit(replays: Sequence[Replay], printed: Sequence[Array]) -> Rates:
    """Rates [draw], normal in their logarithms around the best fit of FIGURES of every replay."""
    gpu = get_gpu("GB10")
    known = rates_for(gpu, Precision("nvfp4", "bf16"), path=engine_posterior(gpu, "llamacpp")).point

    def at(x: Array) -> Rates:
        return replace(known, **{name: getattr(known, name) * np.exp(FREE_SD * x[..., i]) for i, name in enumerate(FREE)})

    def residuals(x: Array) -> Array:
        own = at(x[None, :])
        off = [np.log(r.figures(own)[:, 0] / p) / NOISE_SD for r, p in zip(replays, printed, strict=True)]
        return np.concatenate([*off, x])

    best = least_squares(residuals, np.zeros(len(FREE)))
    return at(np.random.default_rng(1).multivariate_normal(best.x, np.linalg.inv(best.jac.T @ best.jac), size=DRAWS))
