"""Two orders of one recurrence are one formula, differ in last bits, and name other tokens sooner where numbers are narrower."""

import numpy as np
import pytest

from studies import bit_exactness as study
from tests.cli import caught


def drawn(seed):
    rng = np.random.default_rng(seed)
    shape = (3, 2, study.DIM)
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for _ in range(3))
    decay, beta = (rng.uniform(0.1, 1, shape[:2]).astype(np.float32) for _ in range(2))
    return rng.standard_normal((*shape, study.DIM)).astype(np.float32), q, k / np.linalg.norm(k, axis=-1, keepdims=True), v, decay, beta


@pytest.mark.parametrize("seed", range(3))
def test_both_orders_are_the_formula(seed):
    """In float64: S' = g (S - beta k (k.S)) + beta k v, o = q.S', with the decay on S alone."""
    given = drawn(seed)
    state, q, k, v, decay, beta = (np.asarray(x, np.float64) for x in given)
    held = np.einsum("thkv,thk->thv", decay[..., None, None] * state, k)
    new = decay[..., None, None] * state + np.einsum("thk,thv->thkv", k, beta[..., None] * (v - held))
    for step in (study.decay_after, study.decay_before):
        mine, out = step(*given)
        assert mine.dtype == out.dtype == np.float32
        np.testing.assert_allclose(mine, new, atol=1e-5)
        np.testing.assert_allclose(out, np.einsum("thkv,thk->thv", new, q), atol=1e-4)


def test_an_order_beside_itself_never_parts():
    found = study.agreement(24, 4, 0, study.bf16, study.bf16, (study.decay_after, study.decay_after))
    assert (found.same_state, found.given, found.free.min()) == (1.0, 1.0, 1.0)


def test_the_state_differs_in_its_bits_even_in_float32():
    found = study.agreement(16, 4, 0)
    assert found.same_state < 0.5
    assert found.given == 1.0


def test_texts_part_sooner_with_a_narrower_state():
    wide, narrow = (study.agreement(64, 16, 1, study.bf16, state) for state in (study.exact, study.bf16))
    assert narrow.free[-1] < wide.free[-1] < 1.0
    assert list(narrow.free) == sorted(narrow.free, reverse=True)


def test_bf16_is_the_nearest_of_eight_bits():
    x = np.array([1.0, 1.00390625, 1.01171875, -2.5, 3e38], np.float32)
    np.testing.assert_array_equal(study.bf16(x)[:4], [1.0, 1.0, 1.015625, -2.5])
    assert abs(study.bf16(x)[4] / x[4] - 1) <= 2**-8


def test_the_command_prints_a_line_for_each_precision():
    done = caught(lambda words: study.main.main(words, standalone_mode=False), "--tokens", "16", "--texts", "2")
    assert done.code == 0
    assert [line.split("  ")[0] for line in done.stdout.splitlines()[2:]] == list(study.ARMS)
