"""A miss is told apart where measuring again misses by as much, and runs are counted together beside each by itself."""

from types import SimpleNamespace

from calibrate.served.compare import Score
from calibrate.served.repeats import Repeat
from simctl.validate_text import above_floor, coverage, together


def score(experiment="open 8/s", median=0.06, bound=0.05, requests=100, inside=0.9):
    return Score(experiment, "ttft_s", requests, median, 0.1, 0.0, inside, bound)


def report(scores, apart=None, name="one", simulated=None):
    sent = [Repeat("open 8/s", 2, 100, {"ttft_s": apart})] if apart else []
    floors = [SimpleNamespace(experiment="open 8/s", phase=simulated, scattered={})] if simulated else []
    pairs = [(SimpleNamespace(name="open 8/s", kind="open"), None)]
    run = SimpleNamespace(name=name, gpu=SimpleNamespace(name="H100"))
    return {"scores": scores, "repeats": sent, "floors": floors, "pairs": pairs, "run": run}


def test_a_miss_whose_measured_floor_lies_above_the_bound_is_marked():
    missed, held, again = score(), score(median=0.04), score("open 8/s again")
    high, low = report([missed], apart=0.08), report([missed], apart=0.06)  # floors of 5.7 and 4.2 %
    assert above_floor(high, missed)
    assert above_floor(high, again)
    assert not above_floor(high, held)
    assert not above_floor(low, missed)


def test_a_floor_by_simulation_excuses_nothing():
    missed = score()
    assert not above_floor(report([missed], simulated=0.09), missed)
    assert not above_floor(report([missed]), missed)


def test_a_marked_miss_is_still_a_miss():
    assert not score().within


def test_runs_count_by_their_requests():
    first, second = report([score(requests=300, inside=0.7)], name="one"), report([score(requests=100, inside=1.0)], name="two")
    assert coverage([first, second]) == {"ttft_s": (300 * 0.7 + 100) / 400}
    lines = together([first, second]).splitlines()
    assert lines == [
        "in their 90 %: 70 % (TTFT): one on H100",
        "in their 90 %: 100 % (TTFT): two on H100",
        "in their 90 %: 78 % (TTFT): all 2 runs",
    ]
