"""A fleet served by sim.cluster.fleet_core from first to last call: state made of a trace, prices supplied, logs drained as they fill."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import sim.cluster.fleet_state as on
from sim.cluster import fleet_core as plain
from sim.cluster.fleet_events import first_of
from sim.cluster.fleet_state import FleetCore
from sim.cluster.policies import PowerOfTwo, drawn
from sim.cluster.pools import MOST
from sim.cluster.router import make_router, router_options
from sim.engine import compiled as compiler
from sim.engine.config import EngineConfig
from sim.engine.rows.layout import DONE, NEEDS_ROOM, NEVER, RequestRow, row_of, table_of
from sim.engine.rows.made import fail, given_of, luck_of, make_core, requests_of
from sim.engine.rows.served import Log, Served
from sim.engine.step_clock import StepTime
from sim.rates.serving import HostRates
from sim.ticks import to_ticks
from sim.workload.block_chains import Chains
from sim.workload.sources import followers
from sim.workload.trace import Trace

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False, slots=True)
class FleetRun:
    """Result of a trace: `order` lists calls as they were sent, `ended` is when the last answer came (ticks), and [call] are when each
    was sent (s), its row as a request (sim.engine.rows.layout), its replica, when it reached that (ticks), and how that was decided.
    `served` are the logs of the replicas, where they are kept.
    """

    order: Ints
    arrival_s: NDArray[np.float64]
    requests: NDArray[Any]
    replica: Ints
    reached: Ints
    decision: Ints
    served: list[Served]
    ended: int


class Moves(NamedTuple):
    """KV that comes to a replica from another, `source` of sim.cluster.pools.FETCHES: bandwidths in bytes/s of a replica's link and of one
    that all share, a latency, and the bytes of so many blocks of a prompt.
    """

    source: str
    nic_bytes_per_s: float
    shared_bytes_per_s: float
    latency_s: float
    kv_bytes: NDArray[np.float64]


def covers_router(router: str, options: Mapping[str, Any], replicas: int, config: EngineConfig, shared: Chains | None) -> bool:
    """Whether a router's picks are those of sim.cluster.fleet_routes: it knows what it has sent, and loads as they are."""
    if router not in on.ROUTES or options.get("snapshot_s") or options.get("view", "sent") != "sent":
        return False
    if on.ROUTES[router] < on.PENDING_TOKENS or shared is None:
        return True
    fits = not _remembers(options, config, shared) or replicas * shared.distinct <= on.MOST_STAMPS
    return replicas <= on.MOST_REPLICAS and fits


def _remembers(options: Mapping[str, Any], config: EngineConfig, shared: Chains | None) -> int:
    """Blocks of a replica that a router remembers; 0 where that is all there are."""
    most = options.get("remembers") or config.num_gpu_blocks
    return most if shared is not None and shared.blocks > most else 0


def serve_calls(
    trace: Trace,
    config: EngineConfig,
    steps: StepTime,
    host: HostRates,
    replicas: int,
    router: str,
    options: Mapping[str, Any],
    max_concurrency: int | None,
    shared: Chains | None,
    moves: Moves | None = None,
    *,
    keep: bool,
    compiled: bool,
) -> FleetRun:
    """Serve a trace on equal replicas behind a router that is covered. Raises OverflowError for more than sim.ticks.MOST_TICKS."""
    f = _state(trace, config, steps, host, replicas, router, options, max_concurrency, shared, moves, keep, compiled)
    given = given_of(steps, compiled)
    go_on = compiler.resolved(f, given) if compiled else plain.serve_fleet
    logs, engines = [Log() for _ in range(replicas)], [row_of(f.core.engines, i) for i in range(replicas)]
    while (reason := int(go_on(f, given))) != DONE:
        if reason != NEEDS_ROOM:
            fail(engines[f.c[on.AT]], reason)
        logs[f.c[on.AT]].drain(f.core, engines[f.c[on.AT]])
    calls, every, served = np.asarray(f.calls).reshape(-1, on.CALL), np.arange(len(trace)), []
    for i, log in enumerate(logs if keep else ()):
        log.drain(f.core, engines[i])
        served.append(log.served(every))
    requests = table_of(f.core.requests, RequestRow, len(trace))
    columns = calls[:, on.REPLICA], calls[:, on.REACHED], calls[:, on.DECISION]
    return FleetRun(np.asarray(f.order)[: int(f.c[on.SENT])], np.asarray(f.arrival_s), requests, *columns, served, int(f.c[on.ENDED]))


def _state(
    trace: Trace,
    config: EngineConfig,
    steps: StepTime,
    host: HostRates,
    replicas: int,
    router: str,
    options: Mapping[str, Any],
    max_concurrency: int | None,
    shared: Chains | None,
    moves: Moves | None,
    keep: bool,
    arrays: bool,
) -> FleetCore:
    """The state before the first call."""
    make_router(router, replicas, config.block_size, config.num_gpu_blocks, options)  # which refuses options that none has
    count, settings = len(trace), router_options(router) | dict(options)
    q = requests_of(np.zeros(count, dtype=np.int64), trace.prompt_tokens, trace.output_tokens)
    one_call = np.zeros(on.CALL, dtype=np.int64)
    one_call[[on.FOLLOWER, on.REPLICA]] = -1
    calls = np.repeat(one_call[None], count, axis=0)
    following = followers(trace)
    calls[list(following), on.FOLLOWER] = list(following.values())
    calls[np.isnan(trace.arrival_s), on.WAITS] = 1
    names, remembers = np.zeros(0, dtype=np.int64), _remembers(options, config, shared)
    if shared is not None:
        names, calls[:, on.FIRST_NAME], calls[:, on.DEPTH] = shared.names, shared.begins, shared.depths
        calls[:, on.OWN] = shared.lengths - shared.depths
        if config.enable_prefix_caching:
            q["names"], q["depth"] = shared.begins, shared.depths
    if replicas > 1:
        calls[:, (on.DRAW, on.NEXT_DRAW)] = _draws(router, replicas, options, count)
    arrival_s = np.array(trace.arrival_s, dtype=np.float64)
    rank(q, trace, config)
    token_ticks = to_ticks(host.token_s)
    core = make_core(config, steps, q, names, replicas=replicas, keep=keep, arrays=arrays, token_ticks=token_ticks)
    c = np.zeros(on.COUNTS, dtype=np.int64)
    c[[on.CALLS, on.REPLICAS, on.POLICY, on.BLOCK]] = count, replicas, on.ROUTES[router], config.block_size
    c[[on.DISPATCH, on.WINDOW]] = to_ticks(settings.get("dispatch_s", 0.0)), to_ticks(settings.get("reserve_s", 0.0))
    c[[on.REMEMBERS, on.NAMES]] = remembers, shared.distinct if shared else 0
    c[on.FREE], c[on.AT] = count if max_concurrency is None else max_concurrency, -1
    loads = np.zeros((replicas, on.LOAD), dtype=np.int64)
    loads[:, on.OLDEST] = -1
    idle = 0.0 if settings.get("idle_scores_zero") else 1.0
    x = [host.request_s, host.serial_s, host.prompt_token_s, host.response_s, host.token_s]
    x += [settings.get("overload_factor", 0.0), settings.get("decode_weight", 0.0), idle]
    links, most = np.zeros((2 * replicas + 1, on.LINK)), count if moves and shared else 0  # transfers
    if moves and shared:
        c[[on.FETCH, on.LATENCY]] = on.FROM_MOST if moves.source == MOST else on.FROM_BUSIEST, to_ticks(moves.latency_s)
        links[:-1, on.BANDWIDTH], links[-1, on.BANDWIDTH] = moves.nic_bytes_per_s, moves.shared_bytes_per_s
    columns = {
        "c": c,
        "x": np.array(x, dtype=np.float64),
        "calls": calls.ravel(),
        "arrival_s": arrival_s,
        "think_s": np.array(trace.think_s, dtype=np.float64),
        "leaves": np.zeros(count),
        "given": np.zeros(replicas),
        "wakes": np.full(replicas, NEVER),
        "ranks": np.ones(replicas, dtype=np.int64),
        "departs": np.full(replicas, NEVER),
        "first_awake": first_places(replicas),
        "first_left": first_places(replicas),
        "order": np.zeros(count, dtype=np.int64),
        "loads": loads.ravel(),
        "holders": np.zeros(c[on.NAMES], dtype=np.int64),
        "stamps": np.zeros(replicas * c[on.NAMES] if remembers else 0, dtype=np.int64),
        "events": np.zeros((count + 1 + 2 * most) * on.EVENT, dtype=np.int64),
        "transfers": np.zeros(most * on.TRANSFER),
        "moving": np.zeros(2 * most, dtype=np.int64),
        "links": links.ravel(),
        "kv_bytes": moves.kv_bytes if moves else np.zeros(0),
    }
    own: dict[str, Any] = columns if arrays else {name: column.tolist() for name, column in columns.items() if name != "stamps"}
    own["stamps"] = columns["stamps"] if arrays else columns["stamps"].data  # a run touches little of it
    return FleetCore(**own, core=core)


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
