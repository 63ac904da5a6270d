"""A model is measured under the name that the catalogue of models gives it, too."""

import pytest

from hw.engines.shapes import SHAPES, named, shape
from sim.specs.models import get_model


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "Qwen2.5-7B", "Gemma-3-12B", "Qwen3-Coder-30B-A3B"])
def test_both_names_mean_the_same_sizes(name: str) -> None:
    assert shape(named(name))["num_hidden_layers"] == get_model(name).layers


def test_every_shape_keeps_its_own_name() -> None:
    assert [named(name) for name in SHAPES] == list(SHAPES)


def test_an_unknown_name_stays_as_it_is() -> None:
    assert named("gpt-9") == "gpt-9"
