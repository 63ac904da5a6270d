import numpy as np
import pytest
from scipy import stats

from studies import rank_law


@pytest.mark.parametrize(("a", "b", "candidates"), [(0.9, 1.1, 29), (0.3, 2.4, 700)])
def test_recall_is_scipys_beta_binomial(a: float, b: float, candidates: int) -> None:
    blocks = [1, 2, 8, candidates]
    assert rank_law.recall(a, b, blocks, candidates) == pytest.approx(stats.betabinom.cdf(np.array(blocks) - 1, candidates - 1, a, b))


def test_a_budget_is_the_fewest_blocks_that_find_as_often() -> None:
    k = rank_law.budget(0.9, 0.8, 21.0, 253)
    assert rank_law.recall(0.8, 21.0, k, 253) >= 0.9 > rank_law.recall(0.8, 21.0, k - 1, 253)


def test_published_rows_lie_within_5_percent_of_the_law_of_the_others_in_the_median() -> None:
    assert float(list(rank_law.published_lines())[-1].rsplit(" ", 1)[1]) <= 0.05


def test_the_fit_recovers_the_law_and_predicts_a_longer_context() -> None:
    rng, counts = np.random.default_rng(3), []
    for context, candidates in ((4096, 29), (16384, 125), (65536, 509)):
        ranks = 1 + stats.betabinom.rvs(candidates - 1, 0.5, 2.0, size=4000, random_state=rng)
        counts += [rank_law.RankCount(context, candidates, blocks, int(np.sum(ranks <= blocks)), 4000) for blocks in (1, 4, 16)]
    a, b, held = rank_law.scored(counts, draws=4)
    assert (a, b) == (pytest.approx(0.5, rel=0.1), pytest.approx(2.0, rel=0.15))
    assert len(held) == 3
    assert max(abs(error) for error, _ in held) < 0.02
