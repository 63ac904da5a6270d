"""A line of progress has 80 columns at most, and the cost is in view however long the deployment's name."""

from sim.planning.choices import Part
from sim.planning.race import Candidate, SearchProgress
from simctl.text.layout import WIDTH
from simctl.text.plan_progress import CLOCK, PlanProgress
from tests.planning.synthetic import MET, Made


def test_the_cost_comes_before_a_long_name():
    best = Candidate(0, 17)
    best.add([MET] * 20)
    long = "prefill on 4 replicas of 8 x RTX-PRO-6000, decode on 3 replicas of 2 x H100 fp8 knee:0.65"
    for name, trials in ((long, 123_456), ("1 x H100", 520)):
        text = PlanProgress(True).of([Made(name, None, (Part(1, 3.03, 1),))])._text(SearchProgress(4, trials, 12, best))
        assert len(text) <= WIDTH - CLOCK
        assert "best so far: 51.51 USD/h, 1.00:" in text
    assert text.endswith("17 of 1 x H100")
