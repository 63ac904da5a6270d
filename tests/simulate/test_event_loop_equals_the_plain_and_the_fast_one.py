"""The SimPy replica, the plain loop and the fast path give the same times, to the last bit."""

from functools import cache

from hypothesis import given, settings

from sim.engine.boost import Boost
from sim.engine.fast import FastReplica, covers
from sim.engine.fast_books import Arrivals
from sim.engine.overlap import HostWork
from sim.engine.plain import run_plain
from sim.engine.presets import make_scheduler
from sim.precision import Precision
from sim.rate_source import rates_for
from sim.simulation import simulate
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.stepcost import BillCost
from sim.workload.sources import TraceSource
from tests.simulate.runs import calls, configs, trace_of


@cache
def cost():
    gpu, precision = get_gpu("H100"), Precision()
    rates, work = rates_for(gpu, precision, draws=20).point, HostWork(1e-3, 1e-4, 1e-3, 8e-3)
    return BillCost(get_model("Llama-3.1-8B"), precision, rates, host=work, boost=Boost(0.3, 0.02, 0.1))


@given(calls, configs)
@settings(max_examples=100, deadline=None)
def test_per_request_times(requests, config):
    trace = trace_of(requests)
    record = simulate(TraceSource(trace, config.block_size), [make_scheduler(config)], cost())
    ours = record.requests
    steps = cost().steps
    requests = list(TraceSource(trace, config.block_size).arrivals())
    others = [run_plain(requests, make_scheduler(config), steps.iteration, steps.host, steps.products_of, steps.boost)]
    if covers(config, steps):
        arrivals = Arrivals(trace.arrival_s, trace.prompt_tokens, trace.output_tokens)
        others.append(FastReplica(arrivals, config, steps).run())
    for other in others:
        assert ours["scheduled_s"].tolist() == other.scheduled_s.tolist()
        assert ours["first_token_s"].tolist() == other.first_token_s.tolist()
        assert ours["finish_s"].tolist() == other.finish_s.tolist()
        assert ours["preemptions"].tolist() == other.preemptions.tolist()
        assert len(record.iterations["start_s"]) == other.iterations
