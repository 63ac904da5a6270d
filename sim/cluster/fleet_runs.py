"""A fleet served by sim.cluster.fleet_core from first to last call: state made of a trace, prices supplied, logs drained as they fill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import sim.cluster.fleet_state as on
from sim.cluster import compiled as compiler
from sim.cluster import fleet_core as plain
from sim.cluster.deployed_routers import BALANCED, EPP_BLOCK, MATCHED
from sim.cluster.fleet_events import first_of
from sim.cluster.fleet_state import FleetCore, Pools
from sim.cluster.policies import AFFINITY, FALLBACK, PowerOfTwo, drawn
from sim.cluster.pools import MOST
from sim.cluster.router import make_router, router_options
from sim.engine.config import EngineConfig
from sim.engine.rows.layout import DONE, NEEDS_ROOM, NEVER, Core, RequestRow, row_of, table_of
from sim.engine.rows.made import fail, given_of, luck_of, make_core, requests_of
from sim.engine.rows.served import Log, Served
from sim.engine.step_clock import StepTime
from sim.rates.serving import HostRates
from sim.ticks import to_ticks
from sim.workload.block_chains import Chains
from sim.workload.sources import followers
from sim.workload.trace import Trace

Ints = NDArray[np.int64]
NO_OPTIONS: Mapping[str, Any] = {}
DEPLOYED = "llm-d", "dynamo", "kubernetes-service"  # which name their decisions otherwise than the router
SETTINGS = {
    on.OVERLOAD: "overload_factor",
    on.DECODE_WEIGHT: "decode_weight",
    on.QUEUE: "queue",
    on.KV: "kv",
    on.PREFIX: "prefix",
    on.THRESHOLD: "cache_threshold",
    on.ABSOLUTE: "balance_abs_threshold",
    on.RELATIVE: "balance_rel_threshold",
    on.CREDIT: "overlap_credit",
    on.SCALE: "prefill_load_scale",
    on.EACH: "active_request_weight",
}


@dataclass(frozen=True, eq=False, slots=True)
class FleetRun:
    """Result of a trace: `order` lists calls as they were sent, `ended` is when the last answer came (ticks), and [call] are when each
    was sent (s), its row as a request (sim.engine.rows.layout), its replica, when it reached that and came to its engine (ticks), and how
    the replica was decided. `served` are the logs of the replicas, where they are kept. Where another pool has computed the prompts, that
    is `prefilled`, and calls reached a replica of it.
    """

    order: Ints
    arrival_s: NDArray[np.float64]
    requests: NDArray[Any]
    replica: Ints
    reached: Ints
    at_engine: Ints
    decision: Ints
    served: list[Served]
    ended: int
    prefilled: Prefilled | None = None


class Prefilled(NamedTuple):
    """Of calls whose prompts a pool has computed: [call] its row as a request, its replica, when it came to its engine (ticks) and how the
    replica was decided, [pool, call] when it was routed in both pools, and the logs of the replicas.
    """

    requests: NDArray[Any]
    replica: Ints
    at_engine: Ints
    decision: Ints
    routed: Ints
    served: list[Served]


class Moves(NamedTuple):
    """KV that comes to a replica from another, `source` of sim.cluster.pools.FETCHES: bandwidths in bytes/s of a replica's link and of one
    that all share, a latency, and the bytes of so many blocks of a prompt.
    """

    source: str
    nic_bytes_per_s: float
    shared_bytes_per_s: float
    latency_s: float
    kv_bytes: NDArray[np.float64]


class Servers(NamedTuple):
    """A pool: so many equal engines behind a router."""

    config: EngineConfig
    steps: StepTime
    host: HostRates
    replicas: int = 1
    router: str = "round-robin"
    options: Mapping[str, Any] = NO_OPTIONS


class Handover(NamedTuple):
    """Prompts that go to a decode pool: [call] bytes of their KV, bandwidths in bytes/s of a prefill replica's link, of a decode replica's
    and of one that all share, a latency, layers that go one by one as they are computed (0: all go when all are), and the tokens of output
    for which a decode replica keeps room.
    """

    kv_bytes: NDArray[np.float64]
    bytes_per_s: tuple[float, float]
    shared_bytes_per_s: float
    latency_s: float
    layers: int
    reserve_tokens: int


def covers_router(router: str, options: Mapping[str, Any], replicas: int, config: EngineConfig, shared: Chains | None) -> bool:
    """Whether a router's picks are those of sim.cluster.fleet_routes: it sees loads as they are, and caches that there are to see."""
    if router not in on.ROUTES or options.get("snapshot_s") or (_sees(router, options) and config.scheduler == "llamacpp"):
        return False
    if on.ROUTES[router] < on.PENDING_TOKENS or shared is None:
        return True
    return replicas <= on.MOST_REPLICAS and _stamps(router, options, replicas, config, shared) <= on.MOST_STAMPS


def decision_names(router: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the decisions of a router that is covered, by their numbers."""
    policy = on.ROUTES[router]
    if policy in (on.PREFIX_AFFINITY, on.UNIFIED):
        return AFFINITY, FALLBACK
    if policy in (on.LONGEST_SENT, on.FIRST_SENT):
        return MATCHED, BALANCED
    return (make_router(router, 1, 1, 1, options).decision,) if router in DEPLOYED else (router,)


def _sees(router: str, options: Mapping[str, Any]) -> bool:
    """Whether a router is told what caches hold."""
    return on.ROUTES[router] == on.BLOCK_COST or options.get("view") == "cache"


def _stamps(router: str, options: Mapping[str, Any], replicas: int, config: EngineConfig, shared: Chains | None) -> int:
    """Numbers of `stamps` that a router needs."""
    policy, distinct = on.ROUTES[router], shared.distinct if shared else 0
    if policy == on.FIRST_SENT:
        return distinct
    return replicas * distinct if policy == on.BLOCK_COST or _remembers(router, options, config, shared) else 0


def _remembers(router: str, options: Mapping[str, Any], config: EngineConfig, shared: Chains | None) -> int:
    """Blocks of a replica that a router remembers; 0 where that is all there are."""
    if on.ROUTES[router] in (on.LONGEST_SENT, on.FIRST_SENT) or _sees(router, options):
        return 0
    most = options.get("remembers") or config.num_gpu_blocks
    return most if shared is not None and shared.blocks > most else 0


def serve_calls(
    trace: Trace,
    pool: Servers,
    max_concurrency: int | None = None,
    shared: Chains | None = None,
    moves: Moves | None = None,
    decode: tuple[Servers, Handover] | None = None,
    *,
    keep: bool,
    compiled: bool,
) -> FleetRun:
    """Serve a trace on a pool, or on one that prefills and one that decodes; their routers are covered. Raises OverflowError for more than
    sim.ticks.MOST_TICKS.
    """
    pools = (pool, decode[0]) if decode else (pool,)
    w = _state(trace, pools, max_concurrency, shared, moves, decode[1] if decode else None, keep, compiled)
    given = tuple(given_of(each.steps, compiled) for each in (pools[0], pools[-1]))
    go_on = compiler.resolved(w, *given) if compiled else plain.serve_fleet
    engines = [(f.core, row_of(f.core.engines, i)) for f, each in zip(w, pools, strict=False) for i in range(each.replicas)]
    logs = [Log() for _ in engines]
    while (reason := int(go_on(w, *given))) != DONE:
        at = w.entry.c[on.AT]
        if reason != NEEDS_ROOM:
            fail(engines[at][1], reason)
        logs[at].drain(*engines[at])
    every, served = np.arange(len(trace)), []
    for log, engine in zip(logs if keep else (), engines, strict=False):
        log.drain(*engine)
        served.append(log.served(every))
    order, arrival_s = np.asarray(w.entry.order)[: int(w.entry.c[on.SENT])], np.asarray(w.entry.arrival_s)
    return _result(w, order, arrival_s, served, pool.replicas if decode else 0)


def _result(w: Pools, order: Ints, arrival_s: NDArray[np.float64], served: list[Served], prefillers: int) -> FleetRun:
    """What the state says in the end; the first so many replicas are those of a prefill pool."""
    before, calls = (np.asarray(f.calls).reshape(-1, on.CALL) for f in w)
    rows, prefilled = table_of(w.decode.core.requests, RequestRow, len(calls)), None
    if prefillers:
        prompts = table_of(w.entry.core.requests, RequestRow, len(calls))
        routed = np.array([each[:, on.REACHED] - f.c[on.DISPATCH] for each, f in zip((before, calls), w, strict=True)])
        columns = before[:, on.REPLICA], before[:, on.AT_DOOR], before[:, on.DECISION]
        prefilled = Prefilled(prompts, *columns, routed=routed, served=served[:prefillers])
    reached, replica, at_engine, decision = before[:, on.REACHED], calls[:, on.REPLICA], calls[:, on.AT_DOOR], calls[:, on.DECISION]
    served, ended = served[prefillers:], int(w.entry.c[on.ENDED])
    return FleetRun(order, arrival_s, rows, prefillers + replica, reached, at_engine, decision, served, ended, prefilled)


def _state(
    trace: Trace,
    pools: Sequence[Servers],
    max_concurrency: int | None,
    shared: Chains | None,
    moves: Moves | None,
    handover: Handover | None,
    keep: bool,
    arrays: bool,
) -> Pools:
    """The state before the first call."""
    columns = _columns_of_all(trace, pools, moves if shared else None, handover)
    both: dict[str, Any] = columns if arrays else {name: column.tolist() for name, column in columns.items()}
    found = []
    for place, pool in enumerate(pools):
        own, core = _pool_state(trace, pool, shared, keep, arrays, role=on.SERVES if handover is None else (on.PREFILLS, on.DECODES)[place])
        c = own["c"]
        c[[on.ALL, on.AT]] = sum(each.replicas for each in pools), -1
        c[on.FREE] = len(trace) if max_concurrency is None else max_concurrency
        if moves and shared:
            c[[on.FETCH, on.LATENCY]] = on.FROM_MOST if moves.source == MOST else on.FROM_BUSIEST, to_ticks(moves.latency_s)
            own["kv_bytes"] = moves.kv_bytes
        if handover:
            c[[on.FIRST, on.ROOM, on.LATENCY]] = place * pools[0].replicas, pool.config.kv_capacity_tokens, to_ticks(handover.latency_s)
            c[on.RESERVE] = place * handover.reserve_tokens
            own["x"][[on.LAYERS, on.WAY_OUT]] = handover.layers, handover.bytes_per_s[0]
        given: dict[str, Any] = own if arrays else {name: column.tolist() for name, column in own.items() if name != "stamps"}
        given["stamps"] = own["stamps"] if arrays else own["stamps"].data  # a run touches little of it
        found.append(FleetCore(**given, **both, core=core))
    return Pools(found[0], found[-1])


def _columns_of_all(trace: Trace, pools: Sequence[Servers], moves: Moves | None, handover: Handover | None) -> dict[str, Any]:
    """The columns that pools share."""
    count, replicas = len(trace), [pool.replicas for pool in pools]
    total, most = sum(replicas), count if handover or moves else 0  # transfers
    links, transfers = np.zeros((2 * total + 1, on.LINK)), np.zeros((most, on.TRANSFER))
    if moves:
        links[:-1, on.BANDWIDTH], links[-1, on.BANDWIDTH] = moves.nic_bytes_per_s, moves.shared_bytes_per_s
    if handover:
        links[:-1, on.BANDWIDTH] = np.repeat(handover.bytes_per_s, [2 * each for each in replicas])
        links[-1, on.BANDWIDTH], transfers[:, on.LEFT] = handover.shared_bytes_per_s, handover.kv_bytes
    return {
        "arrival_s": np.array(trace.arrival_s, dtype=np.float64),
        "think_s": np.array(trace.think_s, dtype=np.float64),
        "clock": np.zeros(on.CLOCK, dtype=np.int64),
        "events": np.zeros((count + 1 + 2 * most) * on.EVENT, dtype=np.int64),
        "wakes": np.full(total, NEVER),
        "ranks": np.ones(total, dtype=np.int64),
        "departs": np.full(total, NEVER),
        "first_awake": first_places(total),
        "first_left": first_places(total),
        "transfers": transfers.ravel(),
        "moving": np.zeros(2 * most, dtype=np.int64),
        "links": links.ravel(),
    }


def _pool_state(trace: Trace, pool: Servers, shared: Chains | None, keep: bool, arrays: bool, role: int) -> tuple[dict[str, Any], Core]:
    """Columns of a pool alone, as arrays, and its engines."""
    config, host, replicas, router, options = pool.config, pool.host, pool.replicas, pool.router, pool.options
    make_router(router, replicas, config.block_size, config.num_gpu_blocks, options)  # which refuses options that none has
    count, settings = len(trace), router_options(router) | dict(options)
    q = requests_of(np.zeros(count, dtype=np.int64), trace.prompt_tokens, trace.output_tokens)
    if role == on.PREFILLS:
        q["output"] = 1
    elif role == on.DECODES:
        q["comes_with"] = trace.prompt_tokens
    one_call = np.zeros(on.CALL, dtype=np.int64)
    one_call[[on.FOLLOWER, on.REPLICA]] = -1
    calls = np.repeat(one_call[None], count, axis=0)
    following = followers(trace)
    calls[list(following), on.FOLLOWER] = list(following.values())
    calls[np.isnan(trace.arrival_s), on.WAITS] = 1
    names, stride = np.zeros(0, dtype=np.int64), max(EPP_BLOCK // config.block_size, 1) if on.ROUTES[router] == on.PICKER else 1
    if shared is not None:
        names, calls[:, on.FIRST_NAME], calls[:, on.DEPTH] = shared.names, shared.begins, shared.depths // stride
        calls[:, on.OWN] = shared.lengths // stride - shared.depths // stride
        if config.enable_prefix_caching:
            q["names"], q["depth"] = shared.begins, shared.depths
    if replicas > 1:
        calls[:, (on.DRAW, on.NEXT_DRAW)] = _draws(router, replicas, options, count)
    rank(q, trace, config)
    token_ticks = to_ticks(host.token_s)
    warm = shared.warm if shared is not None else None
    core = make_core(config, pool.steps, q, names, replicas=replicas, keep=keep, arrays=arrays, token_ticks=token_ticks, warm=warm)
    c = np.zeros(on.COUNTS, dtype=np.int64)
    c[[on.CALLS, on.REPLICAS, on.POLICY, on.BLOCK, on.ROLE]] = count, replicas, on.ROUTES[router], config.block_size, role
    c[[on.DISPATCH, on.WINDOW]] = to_ticks(settings.get("dispatch_s", 0.0)), to_ticks(settings.get("reserve_s", 0.0))
    c[[on.REMEMBERS, on.NAMES]] = _remembers(router, options, config, shared), shared.distinct if shared else 0
    c[[on.SEES, on.STRIDE, on.SPAN, on.PERIODS]] = _sees(router, options), stride, stride * config.block_size, -1
    c[on.PERIOD] = max(to_ticks(settings["scrape_s"]), 1) if on.ROUTES[router] == on.PICKER else 0
    loads = np.zeros((replicas, on.LOAD), dtype=np.int64)
    loads[:, on.OLDEST] = -1
    columns = {
        "c": c,
        "x": _figures(host, settings, config, on.ROUTES[router]),
        "calls": calls.ravel(),
        "leaves": np.zeros(count),
        "given": np.zeros(replicas),
        "order": np.zeros(count, dtype=np.int64),
        "loads": loads.ravel(),
        "holders": np.zeros(c[on.NAMES], dtype=np.int64),
        "stamps": np.zeros(_stamps(router, options, replicas, config, shared), dtype=np.int64),
        "kv_bytes": np.zeros(0),
    }
    return columns, core


def _figures(host: HostRates, settings: Mapping[str, Any], config: EngineConfig, policy: int) -> NDArray[np.float64]:
    """Seconds of the host, and what a router goes by: its settings, 0 where it has none of a name."""
    x = np.zeros(on.FIGURES)
    x[[on.REQUEST_S, on.SERIAL_S, on.PROMPT_TOKEN_S, on.RESPONSE_S, on.TOKEN_S]] = (
        host.request_s, host.serial_s, host.prompt_token_s, host.response_s, host.token_s,
    )  # fmt: skip
    x[on.IDLE_SCORE] = 0.0 if settings.get("idle_scores_zero") else 1.0
    x[on.CAPACITY] = max(config.num_gpu_blocks, 1) if policy == on.PICKER else config.num_gpu_blocks * config.block_size
    for place, name in SETTINGS.items():
        x[place] = settings.get(name, 0.0)
    return x


def first_places(replicas: int) -> Ints:
    """A tree (sim.cluster.fleet_events.first_of) over replicas that come in order."""
    found = np.zeros(replicas, dtype=np.int64)
    for place in range(replicas - 1, 0, -1):
        found[place] = min(first_of(found, replicas, 2 * place), first_of(found, replicas, 2 * place + 1))
    return found


def rank(requests: NDArray[Any], trace: Trace, config: EngineConfig) -> None:
    """Note what priorities and draws of drafts hang on."""
    requests["arrival_s"] = trace.arrival_s
    if config.policy == "priority":
        requests["priority"] = trace.priorities or 0
        requests["name_rank"][sorted(range(len(trace)), key=trace.request_ids.__getitem__)] = np.arange(len(trace))
    if config.options.get("draft_tokens"):
        requests["luck"] = luck_of(trace.request_ids)


def _draws(router: str, replicas: int, options: Mapping[str, Any], count: int) -> Ints:
    """Random draws of a router for each pick, whatever the loads: [count, 2] replicas, or draws for ties."""
    if on.ROUTES[router] not in (on.POWER_OF_TWO, on.DRAWN):
        return drawn(options.get("seed", 0), count)
    found = np.zeros((count, 2), dtype=np.int64)
    if on.ROUTES[router] == on.POWER_OF_TWO:
        policy = PowerOfTwo(seed=options.get("seed", 0))
        found[:] = [policy.draw(replicas) for _ in range(count)]
    else:
        picks, up, nothing = make_router(router, replicas, 0, 0, options), list(range(replicas)), None
        found[:, 0] = [picks.pick(nothing, up, 0) for _ in range(count)]  # type: ignore[arg-type]  # it does not look at the request
    return found
