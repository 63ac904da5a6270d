"""A config.json as a file, a folder or a name in the local hub cache is read like the catalogue's own."""

import json
from dataclasses import replace

import pytest

from sim.errors import UsageError
from sim.specs.models import catalogue_config, get_model, list_models


def same_shape(a, b):
    return replace(a, name="", source="") == replace(b, name="", source="")


def write(folder, config):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder / "config.json"


@pytest.mark.parametrize("name", list_models())
def test_file_and_folder(name, tmp_path):
    file = write(tmp_path / "some-model", catalogue_config(name))
    spec = get_model(str(file))
    assert same_shape(spec, get_model(name))
    assert spec.name == "some-model"
    assert get_model(str(file.parent)) == spec


@pytest.mark.parametrize("variable", ["HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME"])
def test_hub_cache_in_each_place(variable, tmp_path, monkeypatch):
    for name in ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    below = {"HF_HUB_CACHE": "", "HF_HOME": "hub", "XDG_CACHE_HOME": "huggingface/hub", "HOME": ".cache/huggingface/hub"}[variable]
    write(tmp_path / below / "models--acme--tiny" / "snapshots" / "abc", catalogue_config("Llama-3.2-1B"))
    spec = get_model("acme/tiny")
    assert spec.name == "acme/tiny"
    assert same_shape(spec, get_model("Llama-3.2-1B"))


def test_hub_cache_prefers_the_revision_main_points_at(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    repo = tmp_path / "models--acme--tiny"
    write(repo / "snapshots" / "old", catalogue_config("Llama-3.2-1B"))
    write(repo / "snapshots" / "new", catalogue_config("Llama-3.2-3B"))
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("old\n")
    assert get_model("acme/tiny").layers == 16


def test_name_absent_from_the_cache_is_unknown(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UsageError, match="unknown model 'acme/absent'"):
        get_model("acme/absent")


def test_layer_types_spelt_out_equal_the_rule(tmp_path):
    config = catalogue_config("gpt-oss-20b")
    config["layer_types"] = ["sliding_attention", "full_attention"] * 12
    assert same_shape(get_model(str(write(tmp_path, config))), get_model("gpt-oss-20b"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layer_types", [*["chunked_attention"] * 3, "full_attention"] * 12),
        ("no_rope_layers", [1, 1, 1, 0] * 12),
        ("no_rope_layers", []),
        ("moe_layers", list(range(1, 48, 2))),
    ],
)
def test_llama_4_lists_spelt_out_equal_the_rules(field, value, tmp_path):
    config = catalogue_config("Llama-4-Maverick")
    config["text_config"] = config["text_config"] | {field: value}
    assert same_shape(get_model(str(write(tmp_path, config))), get_model("Llama-4-Maverick"))


def test_fields_that_multimodal_gemma_leaves_out(tmp_path):
    """The published 4B configuration gives only what differs from the implementation's defaults."""
    config = catalogue_config("Gemma-3-4B")
    kept = {"model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "sliding_window"}
    config["text_config"] = {k: v for k, v in config["text_config"].items() if k in kept}
    assert same_shape(get_model(str(write(tmp_path, config))), get_model("Gemma-3-4B"))


def test_null_counts_as_absent(tmp_path):
    config = catalogue_config("Llama-3.1-8B") | {"head_dim": None, "mlp_bias": None}
    assert same_shape(get_model(str(write(tmp_path, config))), get_model("Llama-3.1-8B"))


def test_unquantised_gpt_oss_has_no_fixed_expert_precision(tmp_path):
    config = catalogue_config("gpt-oss-20b")
    del config["quantization_config"]
    assert get_model(str(write(tmp_path, config))).expert_bits is None
    assert get_model("gpt-oss-20b").expert_bits == 4.25
