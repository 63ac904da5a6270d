"""Way out: from an engine's last token to the client."""

from __future__ import annotations

from sim.cluster.fleet_parts import FleetParts
from sim.cluster.prefill_to_decode import PrefillToDecode
from sim.cluster.replica import Replica
from sim.cluster.way_in import WayIn
from sim.engine.interface import Request
from sim.ticks import TICK_S, to_ticks


class WayOut:
    """Sends answers home, and prompts that are computed on to the decode pool."""

    def __init__(self, fleet: FleetParts, way_in: WayIn, handover: PrefillToDecode) -> None:
        self._fleet, self._way_in, self._handover = fleet, way_in, handover

    def engine_finished(self, replica: Replica, request: Request, place: float) -> None:
        """Its client hears of it when the last token, with so many before it at the API server, has come through."""
        if request.hands_over:
            self._handover.prefilled(request, replica, place)
            return
        fleet, running = self._fleet, self._fleet.pool_of(replica)
        fleet.kv.keep(request, replica, running)
        replica.left(request)
        fleet.room(replica).leave(request)
        through_s = max(fleet.clock.now * TICK_S + running.pool.host.after_s(place), request.first_token_s)
        if request.given_up_by(through_s):
            fleet.tell_router(request, replica)
            fleet.impatient[request] = None
        else:
            fleet.impatient.pop(request, None)
            fleet.after(to_ticks(through_s), self._came_through, request, replica)
        self._way_in.release(running)

    def _came_through(self, request: Request, replica: Replica) -> None:
        self._fleet.tell_router(request, replica)
        self._fleet.callers.came_through(request)
