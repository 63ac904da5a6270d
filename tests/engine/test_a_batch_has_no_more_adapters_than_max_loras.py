"""The requests of a batch ask for `max_loras` LoRA adapters at most: one whose adapter would be one too many is passed over, and holds up
nobody behind it. Decisions are compared with the engine's in test_decisions_equal_vllm.py.
"""

from sim.engine.config import EngineConfig
from sim.engine.interface import Request
from sim.engine.schedulers import VllmScheduler

ASKED = "aabbc-ca"  # adapters in order of arrival; "-": none


def batches(max_loras: int, version: str = "0.33") -> list[str]:
    """Adapters of the requests of every iteration, by order of arrival."""
    scheduler = VllmScheduler(EngineConfig(max_loras=max_loras, engine_version=version))
    for place, adapter in enumerate(ASKED):
        scheduler.add(Request(str(place), 0.0, 20, 3, adapter=adapter.strip("-")))
    found = []
    while scheduler.unfinished():
        iteration = scheduler.schedule()
        found.append("".join(ASKED[int(request.request_id)] for request, _ in iteration.scheduled))
        scheduler.complete(iteration)
    return found


def test_as_many_adapters_as_there_may_be() -> None:
    assert batches(0) == ["aabbc-ca"] * 3
    assert batches(3) == ["aabbc-ca"] * 3
    assert batches(2) == ["aabb-a"] * 3 + ["cc"] * 3
    assert batches(1) == ["aa-a"] * 3 + ["bb"] * 3 + ["cc"] * 3


def test_every_version_passes_over_the_same_where_all_that_run_are_computed() -> None:
    assert batches(1, "0.32") == batches(1)
