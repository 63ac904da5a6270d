"""A fleet is busy from the first request to the last answer, also while sessions think: an autoscaler looks as long."""

import sim.cluster.simulation as simulation
from sim.cluster.clients import Clients
from sim.cluster.clock import CLIENTS, Clock
from sim.cluster.pools import Pool
from sim.cluster.replica import SteppedEngine
from sim.cluster.router import make_router
from sim.engine.config import EngineConfig
from sim.engine.registry import make_scheduler
from sim.ticks import ARRIVAL, TICK_S, to_ticks
from sim.workload.sources import TraceSource
from sim.workload.trace import TraceBuilder
from tests.runs import AffinePrice

EVERY_S, TURNS, THINK_S = 0.5, 4, 5.0


def test_between_turns_and_after_the_last(monkeypatch):
    made, seen, clock = [], {}, Clock()
    monkeypatch.setattr(simulation, "Clients", lambda *given: made.append(Clients(*given)) or made[-1])
    builder = TraceBuilder("one session")
    for turn in range(TURNS):
        think_s = THINK_S if turn else 0.0
        builder.add(f"turn {turn}", arrival_s=None if turn else 1.0, prompt_tokens=20, output_tokens=5, session_id="a", think_s=think_s)
    for look in range(80):
        clock.call(to_ticks(EVERY_S * look), ARRIVAL, CLIENTS, lambda: seen.update({clock.now * TICK_S: made[0].busy()}))
    pool = Pool([SteppedEngine(make_scheduler(EngineConfig(num_gpu_blocks=64)), AffinePrice())], make_router("round-robin", 1, 16, 64))
    record = simulation.simulate_pools(TraceSource(builder.build(), 16), [pool], clock=clock)
    last_s = record.requests["finish_s"].max()
    assert last_s > (TURNS - 1) * THINK_S
    assert {at_s: busy for at_s, busy in seen.items() if busy != (at_s < last_s)} == {}
