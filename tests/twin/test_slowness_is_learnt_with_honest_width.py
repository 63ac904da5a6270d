"""Slowness is learnt with an honest width: 90 % intervals hold the truth, and time without data widens them."""

import numpy as np
import pytest

from sim.twin.level import WALK_SD_PER_MINUTE, Level


def test_intervals_hold_truths_drawn_from_the_prior() -> None:
    rng, held, trials = np.random.default_rng(3), 0, 200
    for _ in range(trials):
        level, x = Level.unknown(0.3), 0.3 * rng.standard_normal()
        for _ in range(12):
            level = level.later(15.0)
            x += WALK_SD_PER_MINUTE * 0.5 * rng.standard_normal()
            level = level.learn(20.0 * np.exp(x + 0.08 * rng.standard_t(4)), 20.0, 0.08)
        held += level.quantile(0.05) <= np.exp(x) <= level.quantile(0.95)
    assert 0.84 * trials <= held <= 0.96 * trials  # 90 % less and more 2.8 standard errors


def test_the_level_narrows_with_windows_and_widens_with_time() -> None:
    def width(level: Level) -> float:
        return level.quantile(0.95) / level.quantile(0.05)

    level = Level.unknown()
    for _ in range(5):
        once = level.learn(26.0, 20.0, 0.06)
        assert width(once) < width(level)
        level = once
    assert level.median == pytest.approx(1.3, rel=0.03)
    assert width(level.later(3600.0)) > width(level.later(600.0)) > width(level)


@pytest.mark.parametrize("mean", [0.0, -1.0, float("nan"), float("inf")])
def test_a_mean_that_is_none_teaches_nothing(mean: float) -> None:
    level = Level.unknown()
    assert level.learn(mean, 20.0, 0.1) is level


def test_one_wild_window_does_not_move_what_many_have_said() -> None:
    level = Level.unknown()
    for _ in range(20):
        level = level.learn(20.0, 20.0, 0.06)
    assert level.learn(80.0, 20.0, 0.06).median == pytest.approx(level.median, rel=0.05)
