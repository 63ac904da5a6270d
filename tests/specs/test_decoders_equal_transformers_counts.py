"""Decoders read by their building blocks have the parameters that the reference implementation counts."""

import pytest

from sim.errors import UsageError
from sim.specs.blocks import elements
from sim.specs.hf_config import spec_from_config
from sim.specs.precision import Precision
from sim.specs.stored import group_bytes
from tests.specs.decoders import DECODERS, toy


@pytest.mark.parametrize("kind", sorted(DECODERS))
def test_parameters(kind):
    spec = spec_from_config(toy(kind), kind, "")
    assert spec.params == DECODERS[kind][1]


@pytest.mark.parametrize("kind", sorted(DECODERS))
def test_matrices_and_vectors_are_all_of_a_layer(kind):
    """What a quantisation sees of a layer is what is counted: matrices, and vectors beside them."""
    spec = spec_from_config(toy(kind), kind, "")
    for group, size in zip(spec.groups, group_bytes(spec, Precision("bf16")), strict=True):
        seen = elements(group.matrices(spec.hidden)) + group.mixer.vectors(spec.hidden) + group.mlp.vectors(spec.hidden)
        assert size.layer == 2 * (seen + group.norm_params(spec.hidden))


@pytest.mark.parametrize("kind", ["bamba", "nemotron_h", "lfm2", "gemma4_text", "deepseek_v32", "exaone4"])
def test_an_unknown_block_is_refused_by_name(kind):
    field = "layers_block_type" if kind == "nemotron_h" else "layer_types"
    with pytest.raises(UsageError, match="telepathy"):
        spec_from_config(toy(kind) | {field: ["telepathy"] * 4}, kind, "")
