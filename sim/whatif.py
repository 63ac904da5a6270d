"""what-if: every way to decode a long context on one GPU, feasible or not, with its time, its interval and what binds.

Pure: specs, a question and rate draws in; an answer out. Intervals are 5-95 % over the draws; ratios are taken draw by draw, so what two
options share cancels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from sim.bill import decode_shape, iteration_bill
from sim.fidelity import advice, risk_sentence
from sim.knee import Knee, closed_form_knee, continuous_knee, continuous_knees
from sim.memory import DEFAULT_UTILIZATION, Memory, device_memory, n_max, sequence_bytes
from sim.namespaces import FLOAT
from sim.policy import AttentionPolicy, Placement, blocks, dense, pages, sink_window
from sim.precision import Precision
from sim.price import binding_term, step_terms, step_time_s
from sim.products import known_to
from sim.rate_source import tensor_parallel_notes
from sim.rates import RateDraws, Rates
from sim.specs.gpu import GpuSpec
from sim.specs.model import ModelSpec
from sim.units import about_tokens, format_bytes, format_tokens

LADDER = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
MAX_CROSSOVER = 2**24


@dataclass(frozen=True, slots=True)
class Interval:
    """A point value (at the median rates) and the 5-95 % interval over the draws."""

    point: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked. `context` in tokens, batches in sequences, `tau` the efficiency threshold of the knee."""

    model: ModelSpec
    gpu: GpuSpec
    context: int
    batches: tuple[int, ...] = (1,)
    ks: tuple[int, ...] = (8, 16, 32)
    precision: Precision = field(default_factory=Precision)
    tp: int = 1
    tau: float = 0.65
    utilization: float = DEFAULT_UTILIZATION


@dataclass(frozen=True, slots=True)
class Option:
    """One policy at one batch. Times are per decode step; `hbm_bytes` and `host_bytes` are per GPU, all sequences and weights included."""

    policy: AttentionPolicy
    batch: int
    feasible: bool
    reason: str
    hbm_bytes: float
    host_bytes: float
    n_max: float
    step_s: Interval
    step_s_rates: Interval  # of the rates alone, hosts' differences among them; the rest of `step_s` is what the formula misses of one run
    tokens_per_s: Interval  # per sequence
    speedup: Interval | None  # over the best feasible dense
    binding: str
    terms_s: dict[str, float]


@dataclass(frozen=True, slots=True)
class Answer:
    question: Question
    memory: Memory
    options: list[Option]
    knee_closed_form: float
    knee: Knee  # of the whole formula, on a doubling ladder
    knee_90: tuple[Knee, Knee]  # 5 and 95 % over the draws
    n_max_90: tuple[float, float]  # sequences that fit, dense in HBM, over what is not known of the engine's own memory
    crossovers: dict[tuple[int, int], float | None]  # (k, batch) -> context where block top-k meets dense, both in HBM
    crossovers_90: dict[tuple[int, int], tuple[float, float]]  # the same at 5 and 95 % of the draws; at MAX_CROSSOVER or beyond: not below
    fidelity: list[str]
    miss: Interval | None  # what the formula misses of one run, as a factor on every time; None where the rates do not say
    rates_summary: str
    rates_basis: dict[str, str]
    notes: list[str]
    recommendation: list[str]


def interval(point: float, draws: Any) -> Interval:
    """The 5-95 % interval of an array of draws around a point value."""
    low, high = np.quantile(draws, [0.05, 0.95])
    return Interval(float(point), float(low), float(high))


def policies(ks: tuple[int, ...]) -> Iterator[AttentionPolicy]:
    """The regime: dense, sink+window, page-16 and block-128 selection, each with its KV in HBM and in host RAM."""
    makers: list[Callable[[Placement], AttentionPolicy]] = [dense, sink_window]
    makers += [partial(pages, k) for k in ks] + [partial(blocks, k) for k in ks]
    for make in makers:
        yield make("hbm")
        yield make("host")


def answer(question: Question, rates: RateDraws) -> Answer:
    """Lay the regime out. Raises UsageError for a tensor-parallel degree the model's heads do not split over."""
    q = question
    memory = device_memory(q.model, q.gpu, q.precision, tp=q.tp, utilization=q.utilization)
    options: list[Option] = []
    for batch in q.batches:
        options += _options_at(q, batch, memory, rates)
    c_kv = sequence_bytes(q.model, q.context, q.precision, dense(), q.tp)[0]
    alone = iteration_bill(q.model, decode_shape(q.model, 1.0, float(q.context)), q.precision, tp=q.tp, gpu=known_to(q.gpu))
    weights = alone.weight_bytes + alone.expert_bytes
    crossovers = {(k, b): crossover_context(q, blocks(k), b, rates.point) for k in q.ks for b in q.batches if q.model.kv_layers}
    fidelity = [risk_sentence(k, q.context, q.model.name) for k in q.ks]
    notes = []
    if q.context > q.model.max_context:
        notes.append(f"{q.context} tokens exceed the {q.model.max_context} that {q.model.name} declares; costs are priced, quality is not.")
    if q.gpu.unified_memory:
        notes.append(f"{q.gpu.name} has one memory for CPU and GPU: there is no separate host tier.")
    notes += tensor_parallel_notes(q.tp, rates.basis)
    return Answer(
        question=q,
        memory=memory,
        options=options,
        knee_closed_form=float(closed_form_knee(c_kv / weights, q.tau)) if c_kv else float("inf"),
        knee=decode_knee(q, rates.point),
        knee_90=_knee_interval(q, rates.draws),
        n_max_90=_n_max_interval(q, c_kv),
        crossovers_90={(k, b): _crossover_interval(q, blocks(k), b, rates.draws) for k, b in crossovers},
        crossovers=crossovers,
        fidelity=fidelity,
        miss=None if rates.error is None else interval(1.0, rates.error),
        rates_summary=rates.summary,
        rates_basis=rates.basis,
        notes=notes,
        recommendation=[_recommend(q, [o for o in options if o.batch == b], crossovers) for b in q.batches],
    )


def step_seconds(q: Question, policy: AttentionPolicy, batch: float, context: Any, rates: Rates, xp: Any = None) -> Any:
    """Decode step time of a uniform batch; pass numpy as `xp` for array rates."""
    bill = iteration_bill(q.model, decode_shape(q.model, batch, context, policy, xp or FLOAT), q.precision, policy, q.tp, known_to(q.gpu))
    return step_time_s(bill, rates, xp) if xp is not None else step_time_s(bill, rates)


def decode_knee(q: Question, rates: Rates) -> Knee:
    """Knee of dense decode under the whole formula (fixed costs and windows included), on a doubling ladder."""
    times = [step_seconds(q, dense(), float(b), float(q.context), rates) for b in LADDER]
    return continuous_knee(LADDER, [times[0] / t for t in times], q.tau)


def crossover_context(q: Question, policy: AttentionPolicy, batch: int, rates: Rates) -> float | None:
    """Smallest context at which `policy` is no slower than dense, both in HBM; None when not below 2**24 tokens."""

    def gain(context: float) -> float:
        return float(step_seconds(q, dense(), float(batch), context, rates) - step_seconds(q, policy, float(batch), context, rates))

    low, high = 1.0, float(MAX_CROSSOVER)
    if gain(high) < 0:
        return None
    while high - low > 1.0:
        middle = (low + high) / 2
        low, high = (low, middle) if gain(middle) >= 0 else (middle, high)
    return high


def _knee_interval(q: Question, draws: Rates) -> tuple[Knee, Knee]:
    times = np.array([np.asarray(step_seconds(q, dense(), float(b), float(q.context), draws, np)) for b in LADDER])
    knees = np.sort(continuous_knees(LADDER, times[0] / times, q.tau))
    low, high = (float(knees[int(share * (len(knees) - 1))]) for share in (0.05, 0.95))
    return _knee_of(low), _knee_of(high)


def _knee_of(batch: float) -> Knee:
    return Knee(batch, False) if batch < np.inf else Knee(float(LADDER[-1]), True)


def _crossover_interval(q: Question, policy: AttentionPolicy, batch: int, draws: Rates) -> tuple[float, float]:
    """The bisection of `crossover_context` for all draws at once."""
    low, high = np.ones_like(draws.beta), np.full_like(draws.beta, float(MAX_CROSSOVER))
    for _ in range(24):
        middle = (low + high) / 2
        slower = step_seconds(q, dense(), float(batch), middle, draws, np) >= step_seconds(q, policy, float(batch), middle, draws, np)
        low, high = np.where(slower, low, middle), np.where(slower, middle, high)
    return float(np.quantile(high, 0.05)), float(np.quantile(high, 0.95))


def _n_max_interval(q: Question, bytes_per_sequence: float) -> tuple[float, float]:
    low, high = (
        n_max(device_memory(q.model, q.gpu, q.precision, tp=q.tp, utilization=q.utilization, share=share), bytes_per_sequence)
        for share in (0.95, 0.05)
    )
    return low, high


def _options_at(q: Question, batch: int, memory: Memory, rates: RateDraws) -> list[Option]:
    rows = []
    for policy in policies(q.ks):
        hbm, host = sequence_bytes(q.model, q.context, q.precision, policy, q.tp)
        need = memory.weights + memory.activations + batch * hbm
        fits = need <= memory.allowed
        reason = ""
        if policy.placement == "host" and q.gpu.unified_memory:
            fits, reason = False, "no separate host memory"
        elif policy.placement == "host" and not host:
            fits, reason = False, "no KV grows with the context"
        elif not fits:
            reason = f"needs {format_bytes(batch * hbm)} of KV, {format_bytes(max(0.0, memory.free))} free"
        shape = decode_shape(q.model, float(batch), float(q.context), policy)
        bill = iteration_bill(q.model, shape, q.precision, policy, q.tp, known_to(q.gpu))
        rows.append((policy, fits, reason, need, batch * host, n_max(memory, hbm), bill))
    timed = [(row, step_time_s(row[-1], rates.point), step_time_s(row[-1], rates.draws, np)) for row in rows]
    base = min((t for t in timed if t[0][0].kind == "dense" and t[0][1]), key=lambda t: t[1], default=None)
    options = []
    for (policy, fits, reason, need, host, fit_count, bill), point, draws in timed:
        terms = step_terms(bill, rates.point)
        options.append(
            Option(
                policy=policy,
                batch=batch,
                feasible=fits,
                reason=reason,
                hbm_bytes=need,
                host_bytes=host,
                n_max=fit_count,
                step_s=interval(point, draws),
                step_s_rates=interval(point, draws if rates.error is None else draws / rates.error),
                tokens_per_s=interval(1 / point, 1 / draws),
                speedup=interval(base[1] / point, base[2] / draws) if base and fits else None,
                binding=binding_term(terms),
                terms_s={name: float(value) for name, value in terms._asdict().items()},
            )
        )
    return options


def _recommend(q: Question, options: list[Option], crossovers: dict[tuple[int, int], float | None]) -> str:
    """Plain words for one batch. Sink+window is never recommended: it cannot retrieve what lies outside its window."""
    batch = options[0].batch
    where = f"at {format_tokens(q.context)} batch {batch}"
    able = [o for o in options if o.feasible and o.policy.kind != "sink-window"]
    if not able:
        smallest = min(options, key=lambda o: o.hbm_bytes)
        return (
            f"{where} nothing fits: even {smallest.policy.label} needs {format_bytes(smallest.hbm_bytes)} of "
            f"{format_bytes(smallest.hbm_bytes if not q.gpu else q.utilization * q.gpu.memory_bytes)} usable per GPU. "
            "Take a larger GPU, more of them (--tp), a narrower dtype or a smaller batch."
        )
    base = min((o for o in able if o.policy.kind == "dense"), key=lambda o: o.step_s.point, default=None)
    chosen = [o for o in able if o.policy.kind == "blocks"]
    best = min(chosen, key=lambda o: o.step_s.point, default=None)
    if base is None:
        if best is None:
            return f"{where} only {able[0].policy.label} fits: {able[0].tokens_per_s.point:.3g} tok/s per sequence."
        return f"{where} dense does not fit; {best.policy.label} runs at {best.tokens_per_s.point:.3g} tok/s per sequence."
    if best is None or best.speedup is None:
        return f"{where} run {base.policy.label}: {base.tokens_per_s.point:.3g} tok/s per sequence."
    if best.speedup.point <= 1.0:
        crossing = crossovers.get((best.policy.k, batch))
        until = f"; it pays from about {about_tokens(crossing)} tokens" if crossing else ""
        return f"{where} leave it off: {best.policy.label} would run at {best.speedup.point:.2f}x of {base.policy.label}{until}."
    # among budgets that cost at most a quarter of the gain, the largest keeps most of what matters
    safest = max((o for o in chosen if o.speedup and o.speedup.point - 1 >= 0.75 * (best.speedup.point - 1)), key=lambda o: o.policy.k)
    gain = safest.speedup or best.speedup
    sure = "" if gain.low > 1 else " (the interval includes no gain at all)"
    verdict, recall = advice(safest.policy.k, q.context, q.model.name)
    return (
        f"{where} {verdict}: {safest.policy.label} gives {safest.tokens_per_s.point:.3g} tok/s per sequence, "
        f"{gain.point:.3g}x [{gain.low:.3g}-{gain.high:.3g}] of {base.policy.label} ({base.tokens_per_s.point:.3g} tok/s){sure}. {recall}"
    )
