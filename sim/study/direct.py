"""Runs in the engine in rows, the iteration log included: of one pool, or of one that prefills and one that decodes.

All of it is one call of sim.cluster.fleet_core. Everything else, from admission to autoscaling, goes through the clients and the fleet of
sim.cluster.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sim.cluster import compiled
from sim.cluster.admission import NO_LIMITS
from sim.cluster.fleet_runs import FleetRun, Handover, Moves, Servers, covers_router, decision_names, serve_calls
from sim.cluster.pools import DECODE, PREFILL, SERVE
from sim.engine.config import EngineConfig
from sim.engine.iteration_cost import IterationCost
from sim.engine.rows.made import uncovered
from sim.engine.rows.served import Expanded, LazyColumns
from sim.errors import UsageError
from sim.rates.serving import HostRates
from sim.results.record import (
    AT_ENGINE,
    CHUNK_COLUMNS,
    EVENT_COLUMNS,
    HANDED_OVER,
    ITERATION_COLUMNS,
    PAUSED,
    PREEMPTED,
    REQUEST_INTS,
    SAMPLED_AGAIN,
    SUBMITTED_AGAIN,
    RunRecord,
)
from sim.study.epochs import divisible, in_epochs, too_long
from sim.ticks import TICK_S
from sim.workload.block_chains import Chains, asked_by_several
from sim.workload.content import Grown
from sim.workload.sources import TraceSource
from sim.workload.trace import Trace

if TYPE_CHECKING:
    from sim.study.fleet_spec import Fleet
    from sim.study.studied import PlannedPool, Study

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
WARM = "warm_prefixes"  # an engine's option: caches begin with what requests of several sessions begin with


def event_by_event(study: Study, pools: Sequence[PlannedPool], trace: Trace, keep: bool = True) -> str:
    """Why a run, whose log one would `keep`, is not served by one call of the engine in rows, but event by event; nothing where it is."""
    fleet, spec, config, specs = study.whole_fleet, pools[0].spec, pools[0].config, [pool.spec for pool in pools]
    apart = tuple(each.role for each in specs) == (PREFILL, DECODE)

    def unseen() -> str:
        shared = _shared(trace, config)
        routers = ((pool, pool.spec.deployment.router, pool.spec.deployment.router_options) for pool in pools)
        return next(
            (
                f"what router {name} sees"
                for pool, name, given in routers
                if not covers_router(name, given, pool.spec.most, pool.config, shared)
            ),
            "",
        )

    fetches = any(each.fetch for each in specs) and (apart or config.scheduler != "vllm" or not wait_in_turn(trace))
    reasons = (
        ((spec.role != SERVE or len(pools) > 1) and not apart, "several pools"),
        (fleet.changes, "replicas that start or fail"),
        (fleet.scaling, "an autoscaler"),
        (fleet.store or fetches, "KV that moves"),
        (any(each.max_in_flight is not None or each.max_prompt_tokens is not None for each in specs), "limits of a pool"),
        (study.deployment.admission != NO_LIMITS, "admission"),
        (trace.cancel_s, "clients that give up"),
        (trace.after, "calls that wait for several"),
        (trace.adapters, "adapters that requests name"),
        (trace.images, "images that are encoded first"),
        (not len(trace), "no requests"),
        *((uncovered(pool.config), uncovered(pool.config)) for pool in pools),
        (len({pool.config.block_size for pool in pools}) > 1, "blocks of several sizes"),
        (too_long(trace) and not _in_epochs(study, pools[0], trace), "days of requests that wait, share prefixes or choose a replica"),
    )
    return next((why for holds, why in reasons if holds), "") or unseen()


def _in_epochs(study: Study, pool: PlannedPool, trace: Trace) -> bool:
    if pool.spec.role != SERVE:
        return False
    if pool.config.options.get(WARM):
        return False
    d, shared = pool.spec.deployment, _shared(trace, pool.config)
    return not pool.spec.fetch and divisible(trace, d.router, pool.spec.most, study.workload.max_concurrency, shared is not None)


# drawn once for all draws of the rates


class _Prompts:
    """A trace, equal to one whose calls come at other times."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._columns = trace.contents, trace.prompt_tokens, trace.output_tokens, trace.session_ids

    def __hash__(self) -> int:
        return hash(tuple(map(id, self._columns)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Prompts) and all(map(operator.is_, self._columns, other._columns))


def _shared(trace: Trace, config: EngineConfig) -> Chains | None:
    """Names of KV blocks that several requests begin with, if any do."""
    return _shared_by(_Prompts(trace), config.block_size, config.max_model_len, bool(config.options.get(WARM)))


@lru_cache(maxsize=4)
def _shared_by(prompts: _Prompts, block_size: int, max_model_len: int, warm: bool) -> Chains | None:
    trace = prompts.trace
    if not warm and not trace.adapters and not any(trace.session_ids) and trace.contents.count(None) == len(trace):
        return None
    found = TraceSource(trace, block_size, max_model_len).chains()
    if warm and not len(names := asked_by_several(found, trace.session_ids)):
        raise UsageError(f"{WARM}: no two sessions of this workload begin alike")
    return found._replace(warm=names if warm else None) if found.depths.any() else None


def serve_study(study: Study, pools: Sequence[PlannedPool], trace: Trace, draw: int | None, *, keep: bool) -> RunRecord:
    """The run, as sim.cluster.simulation would have it; nothing of `event_by_event` may hold. `keep` keeps the iteration log, but not of
    a trace that is served in epochs (sim.study.epochs). Raises OverflowError for more time than the integer clock holds.
    """
    pool, config, d = pools[0].at(draw), pools[0].config, pools[0].spec.deployment
    router = d.router, dict(d.router_options), study.workload.max_concurrency
    if too_long(trace):
        cost, fast = pool.cost(draw), compiled.worth(trace)
        return in_epochs(
            trace,
            pool.spec.most,
            lambda part: serve_trace(part, config, cost, pool.host, pool.spec.most, *router, keep=False, fast=fast),
        )
    if len(pools) > 1:
        return _handed_over(study, [each.at(draw) for each in pools], [each.cost(draw) for each in pools], trace, keep=keep)
    moves = _moves(study.whole_fleet, pool, trace) if pool.spec.fetch else None
    return serve_trace(trace, config, pool.cost(draw), pool.host, pool.spec.most, *router, moves, keep=keep)


def wait_in_turn(trace: Trace) -> bool:
    """Whether a session's turns are sent after the answers that they repeat: blocks of answers are then asked for when all are there."""
    seen: set[str | None] = set()
    for session, at_s in zip(trace.session_ids, trace.arrival_s.tolist(), strict=True):
        if session in seen and session is not None and not math.isnan(at_s):
            return False
        seen.add(session)
    return True


def _moves(fleet: Fleet, pool: PlannedPool, trace: Trace) -> Moves:
    blocks = int((trace.prompt_tokens + trace.output_tokens).max()) // pool.config.block_size
    kv_bytes = np.array([pool.spec.kv_bytes(count * pool.config.block_size) for count in range(blocks + 1)])
    return Moves(str(pool.spec.fetch), pool.spec.bytes_per_s, fleet.network.shared_bytes_per_s, fleet.network.latency_s, kv_bytes)


def _handed_over(study: Study, pools: Sequence[PlannedPool], costs: Sequence[IterationCost], trace: Trace, *, keep: bool) -> RunRecord:
    """A run whose prompts one pool computes, and whose tokens another."""
    prefill, network = pools[0], study.whole_fleet.network
    sizes, which = np.unique(trace.prompt_tokens, return_inverse=True)
    handover = Handover(
        np.array([prefill.spec.kv_bytes(tokens) for tokens in sizes.tolist()], dtype=np.float64)[which],
        (prefill.spec.bytes_per_s, pools[1].spec.bytes_per_s),
        network.shared_bytes_per_s,
        network.latency_s,
        prefill.spec.deployment.model.layers if prefill.spec.overlaps else 0,
        pools[1].spec.reserve_tokens,
    )
    servers = []
    for pool, cost in zip(pools, costs, strict=True):
        d = pool.spec.deployment
        servers.append(Servers(pool.config, cost.steps, pool.host, pool.spec.most, d.router, dict(d.router_options)))
    return serve_apart(trace, servers, costs, handover, study.workload.max_concurrency, keep=keep)


def serve_apart(
    trace: Trace,
    pools: Sequence[Servers],
    costs: Sequence[IterationCost],
    handover: Handover,
    max_concurrency: int | None = None,
    *,
    keep: bool = True,
    fast: bool | None = None,
) -> RunRecord:
    """Run a trace on a pool that prefills and one that decodes. `fast` says whether to compile (None: where that is worth it)."""
    (prefill, decode), fast = pools, compiled.worth(trace) if fast is None else fast
    shared = _shared(trace, prefill.config)
    run = serve_calls(trace, prefill, max_concurrency, shared, decode=(decode, handover), keep=keep, compiled=fast)
    return _record(trace, run, pools, costs, keep=keep, moved=True)


def serve_trace(
    trace: Trace,
    config: EngineConfig,
    cost: IterationCost,
    host: HostRates,
    replicas: int = 1,
    router: str = "round-robin",
    options: Mapping[str, Any] | None = None,
    max_concurrency: int | None = None,
    moves: Moves | None = None,
    *,
    keep: bool = True,
    fast: bool | None = None,
) -> RunRecord:
    """Run a trace on equal replicas. `fast` says whether to compile (None: where that is worth it)."""
    shared = _shared(trace, config)
    fast = compiled.worth(trace) if fast is None else fast
    pool = Servers(config, cost.steps, host, replicas, router, dict(options or {}))
    run = serve_calls(trace, pool, max_concurrency, shared, moves, keep=keep, compiled=fast)
    return _record(trace, run, [pool], [cost], keep=keep, moved=moves is not None)


def _record(trace: Trace, run: FleetRun, pools: Sequence[Servers], costs: Sequence[IterationCost], *, keep: bool, moved: bool) -> RunRecord:
    """The record of a run, requests in the order in which they were sent; where KV is `moved` its log says when they came to engines."""
    order = run.order
    rows = np.empty(len(trace), dtype=np.int64)
    rows[order] = np.arange(len(order))
    log = _log(run, rows, costs, moved) if keep else _no_log()
    names, decision = _decisions(run, pools)
    return RunRecord(
        _taken(trace.request_ids, order),
        _taken(trace.session_ids, order),
        _requests(trace, run, pools[-1].host, decision[order]),
        log["iterations"],
        IterationCost.terms,
        log["terms"],
        log["stalls"],
        [run.ended * TICK_S] * sum(pool.replicas for pool in pools),
        log["chunks"],
        log["events"],
        names,
        _taken(trace.tenants, order) if any(trace.tenants) else (),
    )


def _taken(values: Sequence[Any], order: Ints) -> list[Any]:
    """Values of calls in the order in which they were sent."""
    if len(order) == len(values) and (order[1:] > order[:-1]).all():
        return list(values)
    return list(map(values.__getitem__, order.tolist()))


def _decisions(run: FleetRun, pools: Sequence[Servers]) -> tuple[tuple[str, ...], Ints]:
    """Names of routers' decisions in the order in which they first came, and [call] the place among them of its last one."""
    each = [decision_names(pool.router, pool.options) for pool in pools]
    known = list(dict.fromkeys(name for names in each for name in names))
    if len(known) == 1:
        return tuple(known), np.zeros(len(run.decision), dtype=np.int64)
    made = [run.decision] if run.prefilled is None else [run.prefilled.decision, run.decision]
    made = [np.array([known.index(name) for name in names])[codes] for names, codes in zip(each, made, strict=True)]
    came = made[0][run.order]
    if run.prefilled:
        came = np.concatenate(made)[np.argsort(run.prefilled.routed.ravel(), kind="stable")]
    used, first = np.unique(came, return_index=True)
    used = used[np.argsort(first)]
    place = np.zeros(len(known), dtype=np.int64)
    place[used] = np.arange(len(used))
    return tuple(known[i] for i in used.tolist()), place[made[-1]]


def _through_s(rows: NDArray[Any], host: HostRates) -> tuple[Floats, Floats]:
    """When the first and the last token of requests (layout.RequestRow) are with their clients."""
    first_s: Floats = rows["first_sent"] * TICK_S + host.after_s(rows["first_place"], rows["fresh"])
    return first_s, np.maximum(rows["last_sent"] * TICK_S + host.after_s(rows["last_place"]), first_s)


def _requests(trace: Trace, run: FleetRun, host: HostRates, decision: Ints) -> dict[str, NDArray[np.generic]]:
    """The columns of the requests that were sent."""
    order = run.order
    n = len(order)

    in_order = n < 2 or bool((order[1:] > order[:-1]).all())
    rows = run.requests if in_order and n == len(run.requests) else run.requests[order]
    found, began = rows, rows if run.prefilled is None else run.prefilled.requests[order]
    if run.prefilled:  # what a replica finds that computes a prompt again is the last to be said
        found = np.where(rows["cached"] < 0, began, rows)
    first_s, last_s, through_s = rows["first_sent"] * TICK_S, rows["last_sent"] * TICK_S, _through_s(rows, host)
    floats: dict[str, Any] = {
        "arrival_s": run.arrival_s[order],
        "reached_s": run.reached[order] * TICK_S,
        "scheduled_s": began["scheduled"] * TICK_S,
        "first_token_s": through_s[0],
        "finish_s": through_s[1],
        "cancelled_s": np.full(n, math.nan),
        "submitted_s": began["arrives"] * TICK_S,
        "first_sampled_s": first_s,
        "last_sampled_s": last_s,
    }
    repeated: Any = -1
    if Grown in set(map(type, trace.contents)):
        repeated = np.array([content.shared_tokens if isinstance(content, Grown) else -1 for content in trace.contents])[order]
    ints: dict[str, Any] = {
        "prompt_tokens": trace.prompt_tokens[order],
        "output_tokens": trace.output_tokens[order],
        "generated_tokens": trace.output_tokens[order],
        "cached_tokens": found["cached"].astype(np.int64),
        "host_cached_tokens": found["host_cached"].astype(np.int64),
        "preemptions": rows["preemptions"].astype(np.int64),
        "replica": run.replica[order],
        "turn": np.asarray(trace.turns)[order],
        "decision": decision,
        "repeated_tokens": np.full(n, repeated),
    }
    return floats | {name: np.zeros(n, dtype=np.int64) for name in REQUEST_INTS} | ints


class LazyTerms:
    """[iterations, terms] seconds, made when they are looked at, and summed over iterations without that."""

    def __init__(self, make: Any, count: int, names: int, total: Any) -> None:
        self._make, self.shape, self._total = make, (count, names), cache(total)

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:
        whole: Floats = self._make(np.arange(self.shape[0]))
        return whole if dtype is None else whole.astype(dtype)

    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, tuple):
            return np.asarray(self)[which]
        if isinstance(which, (int, np.integer)):
            return self._make(np.array([which]))[0]
        return self._make(np.arange(self.shape[0])[which])

    def astype(self, dtype: Any) -> Any:
        return np.asarray(self).astype(dtype)

    def sum(self, axis: int | None = None) -> Any:
        if axis != 0:
            return np.asarray(self).sum(axis=axis)
        return self._total()


def _log(run: FleetRun, rows: Ints, costs: Sequence[IterationCost], moved: bool) -> dict[str, Any]:
    """The log of all replicas, iterations in the order in which their tokens were sent. `rows` are those of calls in the record."""
    prefilled = run.prefilled
    served = [(one, costs[-1], run.requests["last_sent"]) for one in run.served]
    if prefilled:
        served = [(one, costs[0], prefilled.requests["last_sent"]) for one in prefilled.served] + served
    each, cost = [Expanded(one, cost.steps) for one, cost, _ in served], costs[0]
    replica = np.repeat(np.arange(len(each)), [one.count for one in each])
    single = len(each) == 1
    order = np.arange(len(replica)) if single else np.lexsort((replica, np.concatenate([one.ends for one in each])))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    begins = np.cumsum([0, *(one.count for one in each)])

    def column(name: str) -> Floats:
        values = replica.astype(np.float64) if name == "iteration_replica" else np.concatenate([one.column(name) for one in each])
        return values if single else values[order]

    def terms(which: Ints) -> Floats:
        found = np.empty((len(which), len(cost.terms)))
        at_rows = order[which]
        for index, one in enumerate(each):
            mine = np.flatnonzero(replica[at_rows] == index)
            if len(mine):
                found[mine] = one.terms(at_rows[mine] - begins[index])
        return found

    chunks, events, stalls = [], [], []
    for index, one in enumerate(each):
        calls, last_sent = served[index][0].calls, served[index][2]
        mine = rows[calls]
        table = one.chunks()
        table[:, 0], table[:, 1] = place[table[:, 0] + begins[index]], mine[table[:, 1]]
        chunks.append(table)
        since, again, request = one.pauses()
        stalls.append((again, again * TICK_S - since * TICK_S))
        lost, loser = one.losses(last_sent[calls])
        for kind, ticks, whose in ((PAUSED, since, request), (SAMPLED_AGAIN, again, request), (PREEMPTED, lost, loser)):
            same = np.ones(len(ticks))
            events.append(np.stack([ticks * TICK_S, mine[whose], kind * same, index * same], axis=1))
    events += _handed(run, rows) if moved else []
    merged = np.concatenate(chunks)
    merged = merged[np.argsort(merged[:, 0], kind="stable")].astype(np.float64)
    happened = np.concatenate(events)
    happened = happened[np.argsort(happened[:, 0], kind="stable")]
    ended, stalled = (np.concatenate(values) for values in zip(*stalls, strict=True))
    return {
        "iterations": LazyColumns(ITERATION_COLUMNS, column),
        "terms": LazyTerms(terms, len(order), len(cost.terms), lambda: sum(one.term_totals() for one in each)),
        "stalls": stalled[np.argsort(ended, kind="stable")],
        "chunks": {name: merged[:, i] for i, name in enumerate(CHUNK_COLUMNS)},
        "events": {name: happened[:, i] for i, name in enumerate(EVENT_COLUMNS)},
    }


def _handed(run: FleetRun, rows: Ints) -> list[Floats]:
    """Events of requests whose KV moves: when they come to an engine, leave a prefill replica, and get to a decode replica's engine."""
    found, same = [(AT_ENGINE, run.at_engine, run.replica)], np.ones(len(rows))
    if run.prefilled:
        before = run.prefilled
        found += [(AT_ENGINE, before.at_engine, before.replica), (HANDED_OVER, before.requests["last_sent"], before.replica)]
        found += [(SUBMITTED_AGAIN, run.requests["arrives"], run.replica)]
    return [np.stack([ticks * TICK_S, rows, kind * same, replica], axis=1) for kind, ticks, replica in found]


def _no_log() -> dict[str, Any]:
    none = np.empty(0)
    return {
        "iterations": dict.fromkeys(ITERATION_COLUMNS, none),
        "terms": np.empty((0, len(IterationCost.terms))),
        "stalls": none,
        "chunks": dict.fromkeys(CHUNK_COLUMNS, none),
        "events": dict.fromkeys(EVENT_COLUMNS, none),
    }
