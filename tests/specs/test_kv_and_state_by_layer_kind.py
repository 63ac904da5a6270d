"""What a token adds to the cache, and what a sequence keeps whatever its length, layer kind by layer kind."""

import pytest

from sim.specs.models import get_model


def test_qwen_7b_kv_and_weights_at_one_million_tokens():
    """28 layers x 4 KV heads x 128 x (K, V) x 2 bytes = 57,344 bytes per token (brl07)."""
    spec = get_model("Qwen2.5-7B-1M")
    assert 2 * spec.kv_elements_per_token == 57344
    assert round(2 * spec.kv_elements_per_token * 2**20 / 1e9, 1) == 60.1


@pytest.mark.parametrize(
    ("name", "full", "windowed", "state"),
    [
        ("Gemma-3-4B", 5, 29, 0),
        ("Gemma-2-9B", 21, 21, 0),
        ("gpt-oss-20b", 12, 12, 0),
        ("Llama-4-Scout", 12, 36, 0),
        ("Llama-4-Maverick", 12, 36, 0),
        ("DeepSeek-V3", 61, 0, 0),
        ("Qwen3-Next-80B-A3B", 12, 0, 36),
    ],
)
def test_layer_kinds(name, full, windowed, state):
    spec = get_model(name)
    assert (spec.kv_layers, spec.window_layers, spec.state_layers) == (full, windowed, state)
    assert spec.layers == full + windowed + state


def test_latent_cache_is_one_vector_and_one_rotary_key():
    assert get_model("DeepSeek-V3").kv_elements_per_token == 61 * (512 + 64)


@pytest.mark.parametrize("name", ["Llama-4-Scout", "Llama-4-Maverick"])
def test_chunked_layers_are_windows_of_a_chunk(name):
    """36 of 48 layers attend within chunks of 8,192 tokens: 8 KV heads x 128 x (K, V) per layer."""
    spec = get_model(name)
    assert spec.window == 8192
    assert spec.kv_elements_per_token == 12 * 2 * 8 * 128
    assert spec.window_kv_elements_per_token == 36 * 2 * 8 * 128


def test_window_wider_than_the_context_limits_nothing():
    spec = get_model("Phi-3.5-mini")
    assert spec.window is None
    assert spec.kv_layers == 32


def test_recurrent_state_is_independent_of_the_kv_cache():
    spec = get_model("Qwen3.6-27B")
    assert spec.state_elements == 48 * 48 * 128 * 128
    assert spec.kv_elements_per_token == 16 * 2 * 4 * 256


def test_vision_tower_is_resident_but_not_active():
    spec, text = get_model("Gemma-3-4B"), 3_880_263_168
    assert spec.params - spec.extra_params == text
    assert spec.active_params == text  # tied: the one table is read once, as the output projection


def test_latent_attention_prefills_in_its_expanded_form():
    """DeepSeek-V3: keys of 128 + 64 and values of 128 for each head, beside 512 + 64 and 512 in decode."""
    mixer = get_model("DeepSeek-V3").groups[0].mixer
    assert mixer.prefill_flops_per_pair() == 2 * 128 * (192 + 128)
    assert mixer.attention_flops_per_pair() == 2 * 128 * (576 + 512)
