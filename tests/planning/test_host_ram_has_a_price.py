"""A plan that chooses among sizes of host RAM for KV says what the larger one is worth a month."""

from sim import Deployment, Plan, Workload
from sim.planning.race import search
from sim.planning.words import conclusion
from tests.planning.synthetic import TTFT, trials


def said(enough):
    """The conclusion of a race in which each size needs so many replicas."""
    sizes = (8.0, 64.0)
    found = {f"{gib:g} GiB": Deployment.of("Llama-3.1-8B", "L40S", router="prefix-affinity", kv_offloading_size=gib) for gib in sizes}
    workload = Workload.drawn(40, request_rate=1.0, turns=4)
    choices, _ = Plan(found, workload, ("ttft:p99<1s",), prices={"L40S": 2.0}).choices()
    race, _ = search(choices, TTFT, trials([[float(count >= most) for count in range(1, 13)] for most in enough], 0), 12)
    return conclusion(race)


def test_replicas_saved_are_what_it_is_worth():
    """Four replicas in place of two, on one node: two GPUs at 2 USD for 730 hours, where three are known to fail."""
    assert "64 GiB of host RAM a replica in place of 8 are worth 1,460 USD a month per node or more." in said([4, 2])


def test_nothing_is_said_where_it_saves_nothing():
    assert "host RAM" not in said([2, 2])
    assert "host RAM" not in said([2, 4])
