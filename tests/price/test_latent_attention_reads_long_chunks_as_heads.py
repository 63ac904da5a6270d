"""Latent attention computes chunks of up to 512 tokens as decodes are, in the latent space; longer ones as heads, from keys made anew."""

import pytest

from sim.cost.batch import mixed_batch
from sim.cost.mixer_work import EXPANDING_COPIES, HEAD_PAIRS
from sim.cost.work import iteration_work
from sim.specs.models import get_model
from sim.specs.precision import Precision

LITE = get_model("DeepSeek-V2-Lite")  # 27 layers of 16 heads: keys of 128 + 64, values of 128, latents of 512
LAYERS, HEADS = 27, 16


def work(tokens: int, cached: int, decodes: int = 0):  # type: ignore[no-untyped-def]
    return iteration_work(LITE, mixed_batch(LITE, [1000.0] * decodes, [(tokens, cached + tokens, 1.0)]), Precision())


def pairs(tokens: int, cached: int) -> float:
    return tokens * (cached + tokens) - tokens * (tokens - 1) / 2


def test_a_short_chunk_is_computed_in_the_latent_space() -> None:
    assert work(512, 4096).prefill_flops == pytest.approx(LAYERS * pairs(512, 4096) * 2 * HEADS * (2 * 512 + 64))


def test_a_long_chunk_is_computed_as_heads_and_pays_for_the_keys_it_makes_anew() -> None:
    attended = HEAD_PAIRS * LAYERS * pairs(2048, 4096) * 2 * HEADS * (128 + 64 + 128)
    made = LAYERS * 4096 * 2 * 512 * HEADS * (128 + 128)
    assert work(2048, 4096).prefill_flops == pytest.approx(attended + made)
    assert work(2048, 0).prefill_flops == pytest.approx(HEAD_PAIRS * LAYERS * pairs(2048, 0) * 2 * HEADS * (128 + 64 + 128))


def test_the_keys_made_anew_are_copied_before_attention_starts() -> None:
    """Their bytes do not hide behind the flops of chunks: they stand with those of decodes."""
    latent, key = 512 + 64, 128 + 64
    elements = 3 * latent + HEADS * (2 * (128 + 128) + 2 * key + 128)
    assert work(512, 4096).kv_bytes == 0
    assert work(2048, 4096).kv_bytes == pytest.approx(EXPANDING_COPIES * LAYERS * 2 * 4096 * elements)


def test_a_short_chunk_stays_in_the_latent_space_beyond_a_graph() -> None:
    """The engine looks at each request's tokens, not at the iteration's."""
    assert work(500, 8192, decodes=100).prefill_flops == work(500, 8192).prefill_flops
    short, long, both = (
        iteration_work(LITE, mixed_batch(LITE, [], [(n, 4096.0 + n, 1.0) for n in chunks]), Precision()).prefill_flops
        for chunks in ((400, 500), (600,), (400, 600, 500))
    )
    assert both == pytest.approx(short + long)


def test_more_cached_tokens_never_cost_less() -> None:
    for tokens in (64, 512, 513, 2048):
        some, more = work(tokens, 1000), work(tokens, 50_000)
        assert more.prefill_flops > some.prefill_flops
        assert more.prefill_kv_bytes + more.kv_bytes > some.prefill_kv_bytes + some.kv_bytes
