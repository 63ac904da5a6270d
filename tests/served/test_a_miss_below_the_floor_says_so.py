"""A miss is told apart where replicates lie as far apart, and runs are counted together beside each by itself."""

from types import SimpleNamespace

from calibrate.served.scores import Score, coverage
from simctl.text.validate_text import together


def score(median=0.06, bound=0.05, requests=100, inside=0.9, floor=None):
    return Score("open 8/s", "ttft_s", requests, median, 0.1, 0.0, inside, bound, floor)


def test_a_miss_whose_replicate_floor_lies_above_the_bound_is_marked_and_still_a_miss():
    assert score(floor=0.057).floor_above
    assert not score(floor=0.057).within
    assert not score(floor=0.042).floor_above
    assert not score().floor_above
    assert not score(median=0.04, floor=0.057).floor_above


def test_runs_count_by_their_requests():
    first, second = [score(requests=300, inside=0.7)], [score(requests=100, inside=1.0)]
    assert coverage([*first, *second]) == {"ttft_s": (300 * 0.7 + 100) / 400}
    runs = [SimpleNamespace(name=name, gpu=SimpleNamespace(name="H100")) for name in ("one", "two")]
    reports = [SimpleNamespace(run=run, scores=scores) for run, scores in zip(runs, (first, second), strict=True)]
    assert together(reports).splitlines() == [
        "in their 90 %: 70 % (TTFT): one on H100",
        "in their 90 %: 100 % (TTFT): two on H100",
        "in their 90 %: 78 % (TTFT): all 2 runs",
    ]
