"""A GPU's factor on the ratio is found from its knees, of which those never crossed say only how far they lie at least."""

import numpy as np
import pytest

from calibrate.knees.alpha import learn_alpha
from calibrate.knees.left_out import rank
from calibrate.knees.predictors import observed_knees, ratio
from calibrate.sampling import Settings
from sim.errors import UsageError
from tests.calibrate.curves import curve

QUICK = Settings(draws=1000, tune=500, chains=2, seed=1, target_accept=0.9)
TRUE = {"A10": 2.0, "H100": 0.6}


def curves(ladder=(1, 2, 4, 8, 16, 32)):
    return [
        curve(f"m{i}", gpu, context, alpha, weight=(6 + 4 * i) * 1e9, ladder=ladder)
        for gpu, alpha in TRUE.items()
        for i in range(3)
        for context in (2048, 8192, 32768)
    ]


def test_knees_never_crossed_pull_the_factor_where_leaving_them_out_would_not():
    """Half of a GPU's curves end before their knee: finite ones alone are the early ones, and scatter makes them look like all."""
    rng = np.random.default_rng(2)
    r = np.full(60, 0.02)
    log_knee = np.log((1 + r - 0.65) / (0.65 * r)) + 0.4 * rng.standard_normal(60)
    last = np.log(27.0)
    censored = log_knee > last
    assert 20 < censored.sum() < 40
    batch = np.exp(np.minimum(log_knee, last))
    found = learn_alpha(batch, censored, r, ["H100"] * 60, 0.65, QUICK).factor["H100"]
    finite = np.exp(-np.mean(log_knee[~censored] - np.log((1 + r[~censored] - 0.65) / (0.65 * r[~censored]))))
    assert found[0] < 1.0 < found[2]
    assert finite > found[2]


def test_factors_are_found_the_ladder_is_ranked_whole_and_what_made_the_knees_comes_first():
    knees = observed_knees(curves())
    assert 2 <= knees.censored.sum() <= 9
    scaled = ratio(knees.cells) * np.array([TRUE[c.gpu] for c in knees.cells])
    found = rank(knees, {"truth": (1 - 0.65 + scaled) / (0.65 * scaled)}, ["said"], QUICK)
    names = [r.predictor for r in found.ranked]
    assert set(names[:2]) == {"truth", "Ck/W + per-GPU alpha"}
    assert found.ranked[0].below_best == 0.0
    assert found.knees == 18
    assert found.censored == knees.censored.sum()
    flat = "a constant stands for what does not vary here: KV bytes only 1/k, decode only, precision only"
    assert found.notes == ["said", flat]
    assert len(names) == 10  # eleven of the ladder and the truth, of which three are one constant
    for gpu, (low, middle, high) in found.alpha.items():
        # knees between rungs are read off linearly in log2: a few per cent from the curve that was made
        assert low * 0.93 < TRUE[gpu] < high * 1.07
        assert middle == pytest.approx(TRUE[gpu], rel=0.1)


def test_too_few_finite_knees_are_a_usage_error():
    knees = observed_knees([curve(context=c, ladder=(1, 2)) for c in (512, 1024, 2048, 4096)])
    with pytest.raises(UsageError, match="too few"):
        learn_alpha(knees.batch, knees.censored, ratio(knees.cells), ["H100"] * 4, 0.65, QUICK)
