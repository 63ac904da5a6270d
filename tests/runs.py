"""Small simulated runs that several tests share: a real scheduler, a made-up price."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from hypothesis import strategies as st

from sim.cluster.admission import Admission
from sim.cluster.clock import Clock
from sim.cluster.replica import SteppedEngine
from sim.cluster.router import Router
from sim.cluster.rows_engine import RowsEngine
from sim.cluster.simulation import simulate
from sim.engine.config import EngineConfig
from sim.engine.interface import Iteration, Outcome, Request, Scheduler, StepPrice
from sim.engine.rows.made import uncovered
from sim.engine.schedulers import VllmScheduler
from sim.engine.step_clock import StepTime
from sim.rates.serving import HostRates
from sim.results.record import RunRecord
from sim.ticks import to_ticks
from sim.workload.sources import TraceSource
from sim.workload.trace import Trace, TraceBuilder


@dataclass
class AffinePrice:
    """fixed_s + token_s per token: enough time structure for any test, and easy to compute by hand."""

    fixed_s: float = 0.01
    token_s: float = 0.001
    terms: tuple[str, ...] = ("fixed", "tokens")

    def host(self, iteration: Iteration) -> int:
        return 0

    def __call__(self, iteration: Iteration, head_start: int = 0) -> StepPrice:
        prefill = sum(n for request, n in iteration.scheduled if request.computed_tokens < request.prompt_tokens)
        parts = (self.fixed_s, self.token_s * iteration.total_tokens)
        return StepPrice(to_ticks(sum(parts)), parts, prefill)


class WatchedScheduler(VllmScheduler):
    """The scheduler, telling in which of its iterations each request sampled."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.completed = 0
        self.sampled_in: dict[str, list[int]] = {}

    def complete(self, iteration: Iteration) -> Outcome:
        outcome = super().complete(iteration)
        for request in outcome.sampled:
            self.sampled_in.setdefault(request.request_id, []).append(self.completed)
        self.completed += 1
        return outcome


class TicksPrice(AffinePrice):
    """A price in ticks."""

    def __init__(self, ticks_of: Callable[[Iteration], int]) -> None:
        super().__init__()
        self._ticks_of = ticks_of

    def __call__(self, iteration: Iteration, head_start: int = 0) -> StepPrice:
        return StepPrice(self._ticks_of(iteration), (0.0, 0.0), 0)


@dataclass
class Listed:
    """A source of requests as they are."""

    requests: list[Request]

    @property
    def total(self) -> int:
        return len(self.requests)

    def arrivals(self) -> Iterator[Request]:
        return iter(self.requests)

    def after(self, request: Request, now_s: float) -> list[Request]:
        return []


def serve(requests: list[Request], scheduler: Scheduler, ticks_of: Callable[[Iteration], int]) -> RunRecord:
    """Requests in order of arrival on one replica, its iterations priced in ticks."""
    return simulate(Listed(requests), [SteppedEngine(scheduler, TicksPrice(ticks_of))])


def trace_of(calls: list[tuple[float, int, int]]) -> Trace:
    """A trace of (arrival_s, prompt tokens, output tokens), sorted by arrival."""
    builder = TraceBuilder("test")
    for i, (arrival_s, prompt, output) in enumerate(sorted(calls)):
        builder.add(f"call {i}", arrival_s=arrival_s, prompt_tokens=prompt, output_tokens=output)
    return builder.build()


def run(trace: Trace, config: EngineConfig, price: AffinePrice | None = None, **more):
    """(record, scheduler) of a run on one replica."""
    scheduler = WatchedScheduler(config)
    return simulate(TraceSource(trace, config.block_size), [SteppedEngine(scheduler, price or AffinePrice())], **more), scheduler


calls = st.lists(st.tuples(st.integers(0, 40).map(lambda n: n / 16), st.integers(1, 90), st.integers(1, 30)), min_size=1, max_size=25)
# from starving (every long request alone in the cache) to roomy; a cache always holds the longest request
configs = st.builds(
    EngineConfig,
    num_gpu_blocks=st.integers(11, 60),
    block_size=st.sampled_from([16, 13]),
    max_num_seqs=st.integers(1, 6),
    max_num_batched_tokens=st.sampled_from([6, 17, 64, 200]),
    max_model_len=st.just(4096),
    enable_prefix_caching=st.booleans(),
    options=st.builds(lambda ahead: {"async_scheduling": ahead}, st.booleans()),
)


def request(request_id: str = "r", arrival_s: float = 0.0, prompt: int = 1, output: int = 1) -> Request:
    return Request(request_id, arrival_s, prompt, output)


def run_fast(
    trace: Trace,
    config: EngineConfig,
    steps: StepTime,
    host: HostRates,
    replicas: int = 1,
    *,
    router: Router | None = None,
    max_concurrency: int | None = None,
    admission: Admission | None = None,
) -> RunRecord | None:
    """The run on `replicas` equal replicas, or None where the fast path does not apply: the scheduler or cost is not covered, or
    clients give up.
    """
    if trace.cancel_s or uncovered(config):
        return None
    source = TraceSource(trace, config.block_size, config.max_model_len)
    shared: dict[str, int] = source.shared_blocks() if config.enable_prefix_caching else {}
    numbers: dict[Hashable, int] = {}
    return simulate(
        source,
        [RowsEngine(config, steps, shared, numbers) for _ in range(replicas)],
        router=router,
        host=host,
        max_concurrency=max_concurrency,
        admission=admission,
        keep_iterations=False,
        clock=Clock(),
    )
