"""Counts follow the shape: more of anything never means fewer parameters, bytes or flops."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.specs.hf_config import spec_from_config
from tests.specs.configs import SPECIAL, config

kinds = st.sampled_from(sorted(SPECIAL))
SIZES = ["hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size", "kv_lora_rank", "q_lora_rank", "linear_value_head_dim"]
EXPERTS = ["moe_intermediate_size", "shared_expert_intermediate_size", "num_experts", "num_local_experts", "n_routed_experts"]
GROWING = [*SIZES, *EXPERTS, "n_shared_experts"]


def spec_of(kind, **changes):
    return spec_from_config(config(kind, **changes), kind, "")


@given(kind=kinds, data=st.data(), more=st.integers(1, 64))
def test_params_grow(kind, data, more):
    fields = config(kind)
    name = data.draw(st.sampled_from([field for field in GROWING if fields.get(field)]))
    small, large = spec_of(kind), spec_of(kind, **{name: fields[name] + more})
    unused = {"intermediate_size"} if small.groups[0].mlp.kind == small.groups[-1].mlp.kind == "moe" else set()
    assert large.params > small.params or name in unused
    assert large.kv_elements_per_token >= small.kv_elements_per_token
    assert large.active_params >= small.active_params


@given(kind=kinds, layers=st.integers(1, 12))
def test_layers_add_up(kind, layers):
    spec = spec_of(kind, num_hidden_layers=layers)
    assert spec.layers == layers == spec.kv_layers + spec.window_layers + spec.state_layers
    tables = spec.embedding_params * (1 if spec.tied_embeddings else 2)
    assert spec.params == tables + spec.hidden + sum(g.count * g.layer_params(spec.hidden) for g in spec.groups)


@given(kind=kinds)
def test_one_token_uses_no_more_than_there_is(kind):
    spec = spec_of(kind)
    looked_up = 0 if spec.tied_embeddings else spec.embedding_params
    idle = sum(g.count * (g.mlp.experts - g.mlp.top_k) * g.mlp.expert_params(spec.hidden) for g in spec.groups if g.mlp.kind == "moe")
    assert spec.active_params == spec.params - spec.extra_params - looked_up - idle


@pytest.mark.parametrize("kind", sorted(SPECIAL))
def test_tying_saves_one_table(kind):
    spec = spec_of(kind)
    tied, separate = replace(spec, tied_embeddings=True), replace(spec, tied_embeddings=False)
    assert separate.params - tied.params == spec.embedding_params
    assert separate.active_params == tied.active_params  # read once either way


@given(kv_heads=st.sampled_from([1, 2, 4]), head_dim=st.integers(1, 64))
def test_kv_per_token_is_keys_and_values(kv_heads, head_dim):
    spec = spec_of("llama", num_key_value_heads=kv_heads, head_dim=head_dim)
    assert spec.kv_elements_per_token == 4 * 2 * kv_heads * head_dim
