"""Long-context decode: every way to hold and read the KV cache on one deployment, with its step time, interval and binding term.

Pure: a question and rate draws in, an answer out. Intervals are 5-95 % over the draws; ratios are taken draw by draw, so what two
options share cancels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sim.closed_form.fidelity import GOOD_RECALL, blocks_needed, risk_sentence
from sim.closed_form.knee import Knee, closed_form_knee, continuous_knee, continuous_knees
from sim.closed_form.prefill import prefill_s
from sim.closed_form.serving_at_context import OUTPUT_TOKENS, Serving, serving
from sim.closed_form.ways import Way, recommend
from sim.closed_form.what_if_options import Interval, Option, best_option, interval
from sim.cost.batch import decode_batch
from sim.cost.decode_step import decode_step_work, with_selection
from sim.cost.provenance import outside_measured
from sim.cost.rates import RateDraws, Rates
from sim.cost.step_time import NAMES, binding_term, step_terms, step_time_s
from sim.cost.work import Work, iteration_work
from sim.deployment.memory import Memory, n_max, sequence_bytes
from sim.errors import UsageError
from sim.files import plain
from sim.namespaces import FLOAT
from sim.quantiles import quantiles
from sim.rates.assumed import assumed
from sim.rates.host import Host
from sim.rates.load import OUTSIDE, scope_notes
from sim.rates.posterior import stack_of_file
from sim.rates.source import RateSource
from sim.rates.stack_rates import beyond, default_stack, stack_rates
from sim.shown import Figures, Shown
from sim.specs.attention_policy import BLOCK_TOKENS, AttentionPolicy, Placement, blocks, dense, pages, sink_window
from sim.specs.context import beyond_context
from sim.specs.decode_stack import ENGINE, HARNESS, SELECTED_MOST, STACKS, DecodeStack, stack_named
from sim.study.deployment import Deployment
from sim.units import format_bytes, format_tokens

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]
BUDGETS = (8, 16, 32)
LADDER = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
MAX_CROSSOVER = 2**24
DRAWS_FORMAT = "simctl draws 1"


@dataclass(frozen=True, slots=True, repr=False)
class WhatIf(Shown):
    """Every way to decode `context` tokens on a deployment: does it fit, how fast, what binds.

    `batches` in sequences, `ks` selection budgets in blocks of 128 tokens (None: 8, 16 and 32), `tau` the efficiency threshold of the
    knee. `stack` is who runs the step (sim.specs.decode_stack); None: the one that `default_stack` names. Rates are `draws` of `posterior`
    (None: the packaged one): of the engine as `served`, as in a simulation, on a `host` (None: never seen), or as stepped
    in process. Of `serving`: `users` who think `think_s` seconds between requests, and `output_tokens` of an answer, at the context's end.
    """

    deployment: Deployment
    context: int
    batches: tuple[int, ...] = (1,)
    ks: tuple[int, ...] | None = None
    tau: float = 0.65
    posterior: str | Path | None = None
    draws: int = 1000
    seed: int = 0
    served: bool = True
    stack: str | None = None
    host: Host | None = None
    users: int | None = None
    think_s: float = 0.0
    output_tokens: int = OUTPUT_TOKENS

    def shown(self) -> tuple[str, Figures]:
        """Title and figures."""
        return f"{self.deployment.shown()[0]}, {format_tokens(self.context)} context", [("batches", ", ".join(map(str, self.batches)))]

    def __post_init__(self) -> None:
        if self.deployment.limits.batch_knee is not None:
            raise UsageError("a batch cap at the knee needs a workload")
        try:
            object.__setattr__(self, "context", index(self.context))
            object.__setattr__(self, "batches", tuple(self.batches))
        except TypeError:
            what = f"context is a number of tokens and batches are a tuple, got {self.context!r} and {self.batches!r}"
            raise UsageError(what) from None
        if min(self.context, self.output_tokens, *self.batches, *([] if self.batches else [0])) < 1:
            raise UsageError(f"context, output tokens and batches are 1 or more, got {self.context}, {self.output_tokens}, {self.batches}")
        most = -(-self.context // BLOCK_TOKENS)
        if beyond := [k for k in self.ks or () if k > most]:
            raise UsageError(f"k = {beyond[0]} is more than the {most} blocks of {BLOCK_TOKENS} that {self.context} tokens have")
        if self.stack is not None:
            stack_named(self.stack)
        if not 0.0 <= self.think_s < math.inf or (self.users is not None and self.users < 1):
            raise UsageError(f"users must be at least 1 and think for a time from 0 s on, got {self.users} and {self.think_s:g}")

    @property
    def budgets(self) -> tuple[int, ...]:
        """Selection budgets, in blocks."""
        return self.ks or BUDGETS

    @property
    def runner(self) -> DecodeStack:
        """The stack of the question, the engine where none is said."""
        return stack_named(self.stack or ENGINE)

    def settled(self, rates: RateDraws | None = None) -> WhatIf:
        """The question with its stack: the one asked for, else that of the rates at hand, else the posterior file's or the default.
        UsageError where two of them contradict each other.
        """
        if rates is not None:
            if self.stack not in (None, rates.stack):
                raise UsageError(f"stack {self.stack} at rates of {rates.stack}")
            return replace(self, stack=rates.stack)
        if self.stack is not None:
            return self
        found = default_stack(self.deployment, self.context, self.ks is not None, self.served)
        return replace(self, stack=found if self.posterior is None else stack_of_file(self.posterior))

    def work(self, batch: Any, context: Any, policy: AttentionPolicy, xp: Any = FLOAT) -> Work:
        """Work per GPU of one decode step of `batch` sequences of `context` tokens each, on the question's stack."""
        d = self.deployment
        shape = decode_batch(d.model, batch, context, policy, xp)
        if self.runner.in_engine:
            return with_selection(self.runner, d.work(shape, policy), shape)
        return d.work(shape, policy) if self.runner.name == ENGINE else decode_step_work(self.runner, d.model, shape, d.precision, policy)

    def answer(self, rates: RateDraws | None = None) -> Answer:
        """The answer, at other `rates` than the question's where some are given. UsageError for a tensor-parallel degree that the
        model's heads do not split over; raises what loading rates raises.
        """
        q = self.settled(rates)
        return answer(q, rates or q.rates(), with_others=rates is None)

    def rates(self) -> RateDraws:
        """The rates of the question's stack."""
        q = self.settled()
        assert q.stack is not None
        return stack_rates(q.stack, q.deployment, q._source, q.draws)

    @property
    def _source(self) -> RateSource:
        return RateSource(self.posterior, self.served, host_scale=self.host, seed=self.seed)

    def serving(self) -> Serving:
        """Users of this context on the question's engine (sim.closed_form.serving_at_context). Raises what loading rates raises."""
        return serving(self, *self._source.of(self.deployment, self.draws))

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        d = self.deployment
        seqs, budget = d.batch_limits()
        return {
            "model": d.model.name,
            "gpu": d.gpu.name,
            "context_tokens": self.context,
            "batches": list(self.batches),
            "k": list(self.budgets),
            "stack": self.runner.name,
            "dtype": d.precision.weights,
            "kv_dtype": d.precision.kv,
            "tensor_parallel_size": d.tp,
            "pipeline_parallel_size": d.parallel.pp,
            "data_parallel_size": d.parallel.dp,
            "enable_expert_parallel": d.parallel.expert,
            "tau": self.tau,
            "engine": d.limits.engine,
            "max_num_seqs": seqs,
            "max_num_batched_tokens": budget,
            "gpu_memory_utilization": d.limits.memory_share,
            "draws": self.draws,
            "seed": self.seed,
        }


@dataclass(frozen=True, slots=True, repr=False)
class Answer(Shown):
    question: WhatIf
    memory: Memory
    options: list[Option]
    knee_closed_form: float
    knee: Knee  # of the whole formula, on a doubling ladder
    knee_90: tuple[Knee, Knee]  # 5 and 95 % over the draws
    n_max_90: tuple[float, float]  # sequences that fit, dense in HBM, over what is not known of the engine's own memory
    crossovers: dict[tuple[int, int], float | None]  # (k, batch) -> context where block top-k meets dense, both in HBM
    fidelity: list[str]
    residual: Interval | None  # of the formula in one run, as a factor on every time; None where the rates do not say
    rates: RateDraws
    notes: list[str]
    recommendation: list[str]
    recommended_k: dict[int, int]  # batch -> selection budget that the recommendation speaks of; 0: of none
    prefill: Interval | None  # seconds until a prompt of the context has been read alone, by the engine; None at rates that are not its own
    prefill_rates: Rates | None  # the engine's medians behind it
    ways: dict[int, list[Way]]  # batch -> ways to serve it, the recommended one first
    others: dict[str, list[Option]]  # the same questions of other stacks, by name

    def shown(self) -> tuple[str, Figures]:
        """Title and figures."""
        figures = [(f"verdict, batch {batch}", text) for batch, text in zip(self.question.batches, self.recommendation, strict=True)]
        return self.question.shown()[0], figures

    @property
    def crossovers_90(self) -> dict[tuple[int, int], tuple[float, float]]:
        """The crossovers at 5 and 95 % of the draws; at MAX_CROSSOVER or beyond: not below. They take as long as the rest of the answer."""
        q = self.question
        return {(k, b): _crossover_interval(q, q.runner.policy(blocks(k)), b, self.rates) for k, b in self.crossovers}

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        between = self.crossovers_90
        answered = {
            "question": self.question.to_dict(),
            "rates": {"summary": self.rates.summary, "source": self.rates.source.to_json(), "basis": self.rates.basis},
            "memory_bytes": asdict(self.memory) | {"free": self.memory.free},
            "options": [o.to_dict() for o in self.options],
            "other_stacks": {name: [o.to_dict() for o in options] for name, options in self.others.items()},
            "best": {str(batch): best_option([o for o in self.options if o.batch == batch]) for batch in self.question.batches},
            "knee": {"batch": self.knee.batch, "censored": self.knee.censored, "closed_form": self.knee_closed_form}
            | {"p05": self.knee_90[0].batch, "p95": self.knee_90[1].batch, "p95_censored": self.knee_90[1].censored},
            "n_max_dense_90": list(self.n_max_90),
            "crossover_tokens": [
                {"k": k, "batch": b, "context": c, "p05": between[k, b][0], "p95": between[k, b][1]}
                for (k, b), c in self.crossovers.items()
            ],
            "fidelity": self.fidelity,
            "notes": self.notes,
            "recommendation": self.recommendation,
            "prefill_s": None if self.prefill is None else asdict(self.prefill),
            "usd_per_gpu_hour": self.question.deployment.gpu.price_per_hour,
            "ways": {str(batch): [way.to_dict() for way in found] for batch, found in self.ways.items()},
        }
        found: dict[str, Any] = plain(answered)
        return found

    def to_xarray(self, **attrs: str | float) -> xr.Dataset:
        """Step time of every option at every draw, dims option and draw: a draw has the same rates in all options.

        `residual_factor` [draw] is what the formula misses of one run, already in `step_s`.
        """
        import xarray as xr

        q, options, rates = self.question, self.options, self.rates
        times = np.array([np.asarray(step_seconds(q, o.policy, float(o.batch), float(q.context), rates.draws, np)) for o in options])
        variables: dict[str, Any] = {
            "step_s": (("option", "draw"), times, {"units": "s", "long_name": "one decode step"}),
            "feasible": ("option", np.array([o.feasible for o in options], dtype=np.int8), {"units": "1", "long_name": "1: it fits"}),
        }
        if rates.error is not None:
            meaning = {"units": "1", "long_name": "what the formula misses of one run, in step_s"}
            variables["residual_factor"] = ("draw", np.asarray(rates.error), meaning)
        coordinates: dict[str, Any] = {
            "policy": ("option", np.array([o.policy.kind for o in options], dtype=object)),
            "kv_in": ("option", np.array([o.policy.placement for o in options], dtype=object)),
            "k": ("option", np.array([o.policy.k for o in options])),
            "batch": ("option", np.array([o.batch for o in options])),
        }
        return xr.Dataset(variables, coordinates, {"format": DRAWS_FORMAT, "rates_basis": rates.summary, **attrs})


def policies(ks: tuple[int, ...]) -> Iterator[AttentionPolicy]:
    """The regime: dense, the ends of the context, selected pages, selected blocks, each with its KV in HBM and in host RAM."""
    makers: list[Callable[[Placement], AttentionPolicy]] = [dense, sink_window]
    makers += [partial(pages, k) for k in ks] + [partial(blocks, k) for k in ks]
    for make in makers:
        yield make("hbm")
        yield make("host")


def what_if(
    deployment: Deployment,
    context: int,
    *,
    batches: Sequence[int] = (1,),
    ks: Sequence[int] | None = None,
    tau: float = 0.65,
    rates: RateDraws | None = None,
    draws: int = 1000,
    seed: int = 0,
    stack: str | None = None,
) -> Answer:
    """Every way to decode `context` tokens on `deployment`: does it fit, how fast, what binds. `rates` None loads the best there are."""
    asked = WhatIf(deployment, context, tuple(batches), None if ks is None else tuple(ks), tau, None, draws, seed, stack=stack)
    return asked.answer(rates)


def answer(question: WhatIf, rates: RateDraws, with_others: bool = False) -> Answer:
    """Lay all options out, `with_others` beside those of other stacks. Raises UsageError for a tensor-parallel degree the model's heads do
    not split over, and for rates of another stack than the question's.
    """
    q = question.settled(rates)
    d = q.deployment
    memory = d.memory()
    options: list[Option] = []
    for batch in q.batches:
        options += _options_at(q, batch, memory, rates)
    c_kv = d.parallel.stage_share(d.model) * sequence_bytes(d.model, q.context, d.precision, dense(), d.tp)[0]
    kept = d.request_bytes(q.context, dense())[0]
    single = iteration_work(d.model, decode_batch(d.model, 1.0, float(q.context)), d.precision, tp=d.tp)
    weights = single.linear_bytes + single.head_bytes + single.expert_bytes
    selects = bool(d.model.kv_layers) and "blocks" in q.runner.runs
    chosen = {k: q.runner.policy(blocks(k)) for k in q.budgets if selects}
    crossovers = {(k, b): crossover_context(q, policy, b, rates.point) for k, policy in chosen.items() for b in q.batches}
    of_batch = {b: [o for o in options if o.batch == b] for b in q.batches}
    advised = {b: recommend(q, of_batch[b], memory, rates, crossovers, apart(q, rates)) for b in q.batches}
    prefill, known = _prefill(q, rates, advised[q.batches[0]][2]) if with_others else (None, None)
    notes = [f"{text}." for text in beyond_context(d.model.name, d.model.max_context, q.context)]
    if d.gpu.unified_memory:
        notes.append(f"{d.gpu.name} has one memory for CPU and GPU: there is no separate host tier.")
    return Answer(
        question=q,
        memory=memory,
        options=options,
        knee_closed_form=float(closed_form_knee(c_kv / weights, q.tau)) if c_kv else float("inf"),
        knee=decode_knee(q, rates.point),
        knee_90=_knee_interval(q, rates.draws),
        n_max_90=(n_max(d.memory(0.95), kept), n_max(d.memory(0.05), kept)),
        crossovers=crossovers,
        fidelity=[*(risk_sentence(k, q.context, d.model.name) for k in q.budgets), *(_needed(q, rates) if selects else [])],
        residual=None if rates.error is None else interval(1.0, rates.error),
        rates=rates,
        notes=notes + ([*assumed(d, rates), *scope_notes(d, rates)] if q.stack == ENGINE else _stack_notes(q, rates)),
        recommendation=[text for text, _, _ in advised.values()],
        recommended_k={batch: k for batch, (_, k, _) in advised.items()},
        prefill=prefill,
        prefill_rates=known,
        ways={batch: found for batch, (_, _, found) in advised.items()},
        others=_others(q, memory) if with_others else {},
    )


def _needed(q: WhatIf, rates: RateDraws) -> Iterator[str]:
    """The budget that good recall needs in a sentence, and what a step then costs, both in HBM."""
    found, most = blocks_needed(q.context, q.deployment.model.name), -(-q.context // BLOCK_TOKENS)
    if found is None:
        return
    text, (low, median, high) = found
    widest = f"{high:,.0f}" if high <= most else "all"
    said = f"{100 * GOOD_RECALL:g} % on {text} needs k = {median:,.0f} [{low:,.0f}-{widest}] of {most:,} blocks by the same model"
    if median > most:
        yield f"{said}: more than there are."
        return
    batch = q.batches[0]
    steps = [step_seconds(q, each, batch, q.context, rates.point) for each in (q.runner.policy(blocks(round(median))), dense())]
    beyond_them = f", and the kernels select {SELECTED_MOST} at most" if median > SELECTED_MOST and q.runner.name != HARNESS else ""
    yield f"{said}; a step is then {float(steps[0] / steps[1]):.2g} of dense{beyond_them}."


def _prefill(q: WhatIf, rates: RateDraws, found: list[Way]) -> tuple[Interval, Rates]:
    """(seconds of prefill by the engine, with the cache where the first of these ways keeps it; the engine's median rates)."""
    known = rates if q.stack == ENGINE else replace(q, stack=ENGINE, posterior=None).rates()
    return prefill_s(q.deployment, q.context, known, found[0].policy.placement if found else "hbm"), known.point


def _others(q: WhatIf, memory: Memory) -> dict[str, list[Option]]:
    """Options of the stacks that the question is not of, as far as they decode the deployment; none where no stack but the engine does."""
    found = {}
    for name in STACKS:
        if name != q.stack and q.deployment.limits.engine == ENGINE and q.served and not beyond(q.deployment, name):
            one = replace(q, stack=name, posterior=None)
            rates = one.rates()
            found[name] = [option for batch in q.batches for option in _options_at(one, batch, memory, rates)]
    return found if set(found) - {ENGINE} or q.stack != ENGINE else {}


def _stack_notes(q: WhatIf, rates: RateDraws) -> list[str]:
    """What of a question lies outside what was measured of a stack that is no engine."""
    outside = outside_measured(rates.source, q.deployment.gpu.name, q.deployment.precision.weights, 1, "", q.deployment.model.name)
    return [f"{OUTSIDE} {'; '.join(outside.values())}."] if outside and rates.source.measured else []


def step_seconds(q: WhatIf, policy: AttentionPolicy, batch: float, context: Any, rates: Rates, xp: Any = FLOAT) -> Any:
    """Decode step time of a uniform batch; pass numpy as `xp` for array rates."""
    return step_time_s(q.work(batch, context, policy, xp), rates, xp)


def decode_knee(q: WhatIf, rates: Rates) -> Knee:
    """Knee of dense decode under the whole formula (fixed costs and windows included), on a doubling ladder."""
    times = [step_seconds(q, dense(), float(b), float(q.context), rates) for b in LADDER]
    return continuous_knee(LADDER, [times[0] / t for t in times], q.tau)


def crossover_context(q: WhatIf, policy: AttentionPolicy, batch: int, rates: Rates) -> float | None:
    """Smallest context at which `policy` is no slower than dense, both in HBM; None when not below 2**24 tokens."""
    found = float(_crossovers(q, policy, batch, rates)[0])
    return found if found < MAX_CROSSOVER else None


def apart(q: WhatIf, rates: RateDraws) -> Any:
    """Factor [draw] between a dense step and a selecting one that the formula misses, of a stack whose single steps scatter around it. It
    is drawn from the error of a step; an engine's error is one of its whole run, which ratios lose.
    """
    return 1.0 if q.runner.name == ENGINE or q.runner.in_engine or rates.error is None else np.asarray(rates.error)[::-1]


def _crossovers(q: WhatIf, policy: AttentionPolicy, batch: int, rates: Rates, misfit: Any = 1.0) -> Array:
    """[draw] that context within a token: the place of a grid of 2**24 that halving ends on, MAX_CROSSOVER or below. Times are nearly
    affine in the context, so false position gets there in a quarter of the steps; it takes the places just below and above its estimate
    in turn.
    """
    unit = (MAX_CROSSOVER - 1.0) / 2.0**24

    def gain(place: Array) -> Array:
        context, b = 1.0 + unit * place, float(batch)
        gained: Array = misfit * step_seconds(q, dense(), b, context, rates, np) - step_seconds(q, policy, b, context, rates, np)
        return gained

    low, high = np.zeros(np.size(rates.beta)), np.full(np.size(rates.beta), 2.0**24)
    below, above, turn = np.minimum(gain(low), -1e-30), np.maximum(gain(high), 1e-30), 0
    while (apart := high - low > 1.0).any():
        turn += 1
        share = below / (below - above) if turn % 4 else 0.5  # a half now and then, where times bend
        place = low + (high - low) * share
        place = np.clip(np.floor(place) if turn % 2 else np.ceil(place), low + 1.0, np.maximum(high - 1.0, low + 1.0))
        gained = gain(place)
        beyond, short = apart & (gained >= 0), apart & ~(gained >= 0)
        low, below = np.where(short, place, low), np.where(short, gained, below)
        high, above = np.where(beyond, place, high), np.where(beyond, gained, above)
    return 1.0 + unit * high


def _knee_interval(q: WhatIf, draws: Rates) -> tuple[Knee, Knee]:
    times = np.array([np.asarray(step_seconds(q, dense(), float(b), float(q.context), draws, np)) for b in LADDER])
    knees = np.sort(continuous_knees(LADDER, times[0] / times, q.tau))
    low, high = (float(knees[int(share * (len(knees) - 1))]) for share in (0.05, 0.95))
    return _knee_of(low), _knee_of(high)


def _knee_of(batch: float) -> Knee:
    return Knee(batch, False) if batch < np.inf else Knee(float(LADDER[-1]), True)


def _crossover_interval(q: WhatIf, policy: AttentionPolicy, batch: int, rates: RateDraws) -> tuple[float, float]:
    fifth, last = quantiles(_crossovers(q, policy, batch, rates.draws, apart(q, rates)), (0.05, 0.95))
    return fifth, last


def _options_at(q: WhatIf, batch: int, memory: Memory, rates: RateDraws) -> list[Option]:
    rows, d = [], q.deployment
    for policy in map(q.runner.policy, policies(q.budgets)):
        hbm, host = d.request_bytes(q.context, policy)
        need = memory.weights + memory.activations + batch * hbm
        fits = need <= memory.allowed
        reason = ""
        if lacks := q.runner.lacks(policy):
            fits, reason = False, lacks
        elif policy.placement == "host" and d.gpu.unified_memory:
            fits, reason = False, "no separate host memory"
        elif policy.placement == "host" and not host:
            fits, reason = False, "no KV grows with the context"
        elif memory.free < 0:
            reason = f"even without KV {format_bytes(memory.weights + memory.activations)} of {format_bytes(memory.allowed)}"
        elif not fits:
            reason = f"needs {format_bytes(batch * hbm)} of KV, {format_bytes(max(0.0, memory.free))} free"
        work = q.work(float(batch), float(q.context), policy)
        rows.append((policy, fits, reason, need, batch * host, n_max(memory, hbm), work))
    timed = [(row, step_time_s(row[-1], rates.point), step_time_s(row[-1], rates.draws, np)) for row in rows]
    base = min((t for t in timed if t[0][0].kind == "dense" and t[0][1]), key=lambda t: t[1], default=None)
    options, misfit = [], apart(q, rates)
    for (policy, fits, reason, need, host, fit_count, work), point, draws in timed:
        terms = step_terms(work, rates.point)
        options.append(
            Option(
                policy=policy,
                stack=q.runner.name,
                batch=batch,
                feasible=fits,
                reason=reason,
                hbm_bytes=need,
                host_bytes=host,
                n_max=fit_count,
                step_s=interval(point, draws),
                step_s_rates=interval(point, draws if rates.error is None else draws / rates.error),
                tokens_per_s=interval(1 / point, 1 / draws),
                speedup=interval(base[1] / point, base[2] / draws * (misfit if policy.kind != "dense" else 1.0)) if base and fits else None,
                binding=binding_term(terms),
                terms_s={name: float(value) for name, value in zip(NAMES, terms, strict=True)},
            )
        )
    return options
