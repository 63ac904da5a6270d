"""Prefill to decode: a prompt computed on one replica, its KV sent over the network, its tokens generated on another.

The decode replica fetches the KV when it has room for it; until then the prefill replica holds it. A decode replica computes a prompt again
whose KV was lost on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from sim.cluster.fleet_parts import FleetParts
from sim.cluster.pools import DECODE, PREFILL, RunningPool
from sim.cluster.replica import Replica
from sim.cluster.way_in import WayIn
from sim.engine.interface import Request
from sim.errors import UsageError
from sim.ticks import TICK_S, to_ticks


class PrefillToDecode:
    """Hands prompts over. UsageError where prefill and decode pools do not go together."""

    def __init__(self, fleet: FleetParts, way_in: WayIn) -> None:
        self._fleet, self._way_in = fleet, way_in
        self._decode = _decode_pool(fleet.pools)
        self._output_tokens: dict[Request, int] = {}  # of requests that prefill replicas have
        self._source: dict[Request, Replica] = {}  # of KV that waits at the replica that computed it, or is on its way

    def begin(self, request: Request) -> None:
        """A prefill replica gets the request: it samples one token."""
        self._output_tokens[request] = request.output_tokens
        request.output_tokens, request.hands_over = 1, True

    def fetch(self, request: Request, replica: Replica, submit: Callable[[], None]) -> None:
        """There is room for the prompt's KV: get it from where it was computed, then `submit`."""
        source = self._source.get(request)
        if source is None:
            self._fetched(request, submit)
            return
        pool = self._fleet.pool_of(source).pool
        size = pool.kv_bytes(request.prompt_tokens)
        if pool.overlaps:  # all layers but the last went while later ones were computed, as far as the link could take them
            prefill_s = self._fleet.clock.now * TICK_S - self._fleet.log.scheduled_s(request)
            size = max(size / pool.layers, size - pool.nic_bytes_per_s * prefill_s)
        way = [("out", source.index), "shared", ("in", replica.index)]
        self._fleet.network.send(size, way, partial(self._fetched, request, submit))

    def _fetched(self, request: Request, submit: Callable[[], None]) -> None:
        if request in self._source:
            request.computed_tokens = request.prompt_tokens
        self.forget_kv(request)
        submit()

    def forget_kv(self, request: Request) -> None:
        """The replica that computed the prompt may free its KV."""
        source = self._source.pop(request, None)
        if source is not None:
            self._fleet.room(source).leave(request)
            source.left(request)
            self._way_in.release(self._fleet.pool_of(source))

    def forget_kv_of(self, replica: Replica) -> None:
        """The replica has failed, and all KV that it held."""
        for request in [each for each, source in self._source.items() if source is replica]:
            self.forget_kv(request)

    def end(self, request: Request) -> None:
        """The request is with no prefill replica any more: it asks for all its output again."""
        request.output_tokens = self._output_tokens.pop(request, request.output_tokens)
        request.hands_over = False

    def prefilled(self, request: Request, replica: Replica, place: float) -> None:
        """The prompt is computed, and its KV stays until the decode replica has it. The token sampled here is not used."""
        fleet, running = self._fleet, self._fleet.pool_of(replica)
        fleet.tell_router(request, replica)
        self.end(request)
        running.note_ttft(request, fleet.clock.now)
        fleet.kv.keep(request, replica, running)
        replica.served(request)
        self._source[request] = replica
        request.generated_tokens = request.computed_tokens = 0
        if request in fleet.impatient:
            fleet.impatient[request] = None
        fleet.after(to_ticks(request.first_token_s), self._to_decode, request)

    def _to_decode(self, request: Request) -> None:
        if not request.cancelled:
            assert self._decode is not None
            self._way_in.route(request, self._decode, self._fleet.clock.now * TICK_S)


def _decode_pool(pools: Sequence[RunningPool]) -> RunningPool | None:
    """The decode pool, of which there is one exactly where there is a prefill pool."""
    decoding, prefilling = ([each for each in pools if each.pool.role == role] for role in (DECODE, PREFILL))
    if len(decoding) > 1:
        raise UsageError(f"one decode pool at most: {' and '.join(each.pool.name for each in decoding)}")
    if bool(decoding) != bool(prefilling):
        raise UsageError("a prefill pool needs a decode pool, and a decode pool a prefill pool")
    return decoding[0] if decoding else None
