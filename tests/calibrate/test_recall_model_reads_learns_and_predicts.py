"""Needle-recall rows enter as what they are, and the hierarchical model finds the slopes that made synthetic trials."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit

from calibrate.sampling import Settings, diagnose, sample
from sim.errors import UsageError
from studies.needle_recall.logistic import recall_model
from studies.needle_recall.needle_trials import AtLeast, Bound, Evidence, NeedleTrial, implied_trials, lower_bound, published
from studies.needle_recall.package import thinned
from tests.calibrate import approximated

TRUE = {"prose": (0.3, 1.2), "loop": (4.0, 1.0)}  # intercept, slope per doubling of k
CONTEXT_SLOPE = {"prose": 1.3, "loop": 0.9}


def truth(haystack, context, k):
    intercept, slope = TRUE[haystack]
    return expit(intercept + slope * (np.log2(k) - 3) - CONTEXT_SLOPE[haystack] * (np.log2(context) - 15))


@pytest.fixture(scope="module", params=["approximated", pytest.param("sampled", marks=pytest.mark.slow)])
def sampled(request):
    rng = np.random.default_rng(4)
    trials = tuple(
        NeedleTrial("m", haystack, context, k, int(rng.binomial(200, truth(haystack, context, k))), 200, "made")
        for haystack in TRUE
        for context in (8192, 32768, 131072)
        for k in (8, 32)
    )
    evidence = Evidence(trials, (AtLeast("m", "loop", 8192, 16, 24, 25),), (Bound("m", "loop", 65536, 32, 0.95, 0.975),), ())
    draw = approximated.sample if request.param == "approximated" else sample
    result = draw(recall_model(evidence), Settings(draws=400, tune=500, chains=2, seed=1, target_accept=0.99))
    assert diagnose(result).divergences == 0
    return result.posterior, evidence


@pytest.fixture(scope="module")
def posterior(sampled):
    return sampled[0]


@pytest.fixture(scope="module")
def model(sampled):
    return thinned(*sampled)


def test_slopes_and_levels_are_recovered(posterior):
    for haystack, (intercept, slope) in TRUE.items():
        for name, true in (("intercept", intercept), ("budget_slope", slope), ("context_slope", CONTEXT_SLOPE[haystack])):
            low, high = np.quantile(posterior[name].sel(haystack=haystack), [0.005, 0.995])
            assert low <= true <= high, (haystack, name)


@pytest.mark.parametrize("sampled", [pytest.param("sampled", marks=pytest.mark.slow)], indirect=True)  # how wide hangs on the tails
def test_a_cell_between_the_measured_ones_is_predicted(model):
    draws = model.predict("m", "prose", 65536, 16)
    low, high = np.quantile(draws, [0.05, 0.95])
    assert low <= truth("prose", 65536, 16) <= high
    assert high - low < 0.4


def test_what_was_never_tried_is_wider(model):
    def width(name, haystack):
        return np.ptp(np.quantile(model.predict(name, haystack, 32768, 8), [0.05, 0.95]))

    assert width("m", "prose") < width("another model", "prose") < width("m", "another text")


def test_more_budget_helps_and_more_context_hurts_in_every_draw(model):
    def at(context, k):
        return model.predict("m", "prose", context, k)  # the same seed draws the same cell effect: a common random number

    assert (at(60_000, 24) > at(60_000, 12)).all()
    assert (at(120_000, 12) < at(60_000, 12)).all()


def test_the_published_rows_enter_as_what_they_are():
    evidence = published()
    counted = {(t.haystack, t.k_blocks, t.successes, t.trials) for t in evidence.trials if t.basis == "printed rate and n"}
    assert counted == {("real prose", 8, 58, 100), ("real prose", 16, 78, 100), ("real prose", 32, 96, 100)}
    assert [(b.context_tokens, b.k_blocks, b.recall) for b in evidence.bounds] == [(131072, 32, 0.981)]
    assert {(a.context_tokens, a.k_blocks) for a in evidence.at_least} == {(131072, 8), (131072, 32)}
    (implied,) = [t for t in evidence.trials if t.basis == "n implied by the printed bound"]
    assert round(lower_bound(int(implied.successes), implied.trials), 3) == 0.982
    assert len(evidence.left_out) == 3
    assert len(evidence.trials) + len(evidence.bounds) + 1 + 1 + len(evidence.left_out) == 16  # every row of the table


@given(st.integers(1, 200), st.data())
def test_the_lower_bound_is_exact(n, data):
    from scipy.stats import binom

    x = data.draw(st.integers(1, n))
    # at the bound, seeing x or more has exactly the probability that the confidence leaves
    assert binom.sf(x - 1, n, lower_bound(x, n)) == pytest.approx(0.025, rel=1e-6)


def test_a_bound_that_no_count_implies_is_a_usage_error():
    with pytest.raises(UsageError, match="no count"):
        implied_trials(0.5, 0.9, most=200)


def test_nonsense_cells_and_no_counts_are_usage_errors(model):
    with pytest.raises(UsageError):
        model.predict("m", "prose", 0, 8)
    with pytest.raises(UsageError, match="at least one count"):
        recall_model(Evidence((), (), (), ()))
