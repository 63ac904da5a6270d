"""The same seed and leading rates give the same arrivals and sizes, whatever rates follow: what is predicted is what will be sent."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hw.serve.client import Target
from hw.suites.served import CPU_PLAN, GPU_PLAN, open_loops, plan
from simctl.loop import KNOWN_RATES, NEW_RATE

TARGET = Target("http://127.0.0.1:9", "toy")


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), rates=st.lists(st.floats(0.2, 8.0), min_size=1, max_size=4))
def test_leading_rates_give_the_same_loads(seed: int, rates: list[float]) -> None:
    short = open_loops(TARGET, 1000, seed, tuple(rates), **CPU_PLAN)
    longer = open_loops(TARGET, 1000, seed, (*rates, 3.0), **CPU_PLAN)
    assert [e.load for e in short] == [e.load for e in longer[:-1]]


def test_the_predicted_load_is_the_one_the_served_run_will_send() -> None:
    predicted = open_loops(TARGET, 1000, 0, (*KNOWN_RATES, NEW_RATE), **CPU_PLAN)[-1]
    sent = plan(TARGET, 8192, 0, (*KNOWN_RATES, NEW_RATE), (1, 2), CPU_PLAN)
    assert [e.load for e in sent if e.name == f"open {NEW_RATE:g}/s"] == [predicted.load]


def test_a_gpu_load_has_the_sizes_and_the_rate_it_names() -> None:
    (load,) = open_loops(TARGET, 1000, 1, (400.0,), **(GPU_PLAN | {"duration_s": 25.0}))
    assert load.load is not None
    arrivals, sizes = load.load
    assert len(arrivals) == len(sizes) == load.n == 10_000
    assert abs(np.mean(np.diff(arrivals)) * 400 - 1) < 0.05
    assert abs(np.median([p for p, _ in sizes]) / 512 - 1) < 0.05
    assert abs(np.median([o for _, o in sizes]) / 128 - 1) < 0.05
    assert max(p for p, _ in sizes) <= 4096
