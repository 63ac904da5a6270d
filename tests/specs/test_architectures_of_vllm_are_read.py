"""Nearly every text architecture of vLLM is read from a configuration, with the parameters that transformers has."""

import ast
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import pytest

from sim.specs.architectures import supported
from sim.specs.coverage import engine_architectures, unread_architectures
from sim.specs.hf_config import spec_from_config

VERSION, ARCHITECTURES = engine_architectures()


def test_nineteen_of_twenty_are_read():
    assert len(unread_architectures()) <= 0.05 * len(ARCHITECTURES)
    assert len(ARCHITECTURES) == 124


@pytest.mark.vllm
def test_the_list_is_the_registrys():
    """Read as text: importing the registry takes the engine's kernels."""
    try:
        installed = version("vllm")
    except PackageNotFoundError:
        installed = ""
    if installed != VERSION:
        pytest.skip(f"no vLLM {VERSION}")
    assert set(ARCHITECTURES) == registry_table("_TEXT_GENERATION_MODELS")


def registry_table(name):
    """Architectures of one table of vLLM's registry."""
    spec = find_spec("vllm")
    if spec is None:
        raise ImportError("no vLLM")
    path = Path(spec.submodule_search_locations[0]) / "model_executor/models/registry.py"
    return next(
        set(ast.literal_eval(each.value))
        for each in ast.parse(path.read_text()).body
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name) and each.targets[0].id == name
    )


UNBUILT = {  # what transformers takes where nothing is said is no model
    "dbrx": "its own fields are missing",
    "deepseek_v2": "no experts a token",
    "glm4_moe": "heads do not divide the hidden size",
    "gpt-sw3": "GPT-2 by another name, not in files",
    "lfm2_moe": "no kinds of layers",
    "nemotron": "no KV heads",
}


def of_transformers():
    """model_type -> architecture, where transformers has the class that vLLM's registry names; wrappers by their text part."""
    try:
        from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as known
    except ImportError:
        return {}
    found = {kind: name for kind, name in known.items() if name in ARCHITECTURES and kind not in UNBUILT}
    return {kind: name for kind, name in found.items() if kind + "_text" not in found}


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", sorted(of_transformers()))
def test_parameters_are_those_of_transformers(kind):
    """Of the configuration that transformers takes where a file says nothing."""
    import torch
    import transformers

    if ARCHITECTURES[of_transformers()[kind]] not in supported():
        pytest.skip("not read")
    configured = transformers.AutoConfig.for_model(kind)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(configured)
    count = sum(each.numel() for each in model.parameters())
    count += sum(each.numel() for called, each in model.named_buffers() if called.endswith("e_score_correction_bias"))
    spec = spec_from_config(configured.to_dict() | {"model_type": kind}, kind, "")
    if kind == "longcat_flash":  # transformers allots gate and up projections to the experts that compute nothing
        moe = next(group for group in spec.groups if group.mlp.kind == "moe")
        count -= moe.count * moe.mlp.idle_experts * 2 * moe.mlp.intermediate * spec.hidden
    assert spec.params == pytest.approx(count, rel=1e-3)


# What transformers builds of these is not the text part alone, or not at all without a file's fields
WRAPPERS_UNBUILT = {"blip-2", "cohere_compass", "gemma3n", "gemma4", "glm4v_moe", "granite4_vision"}
WRAPPERS_UNREAD = {"cosmos3_edge", "diffusion_gemma", "molmo2", "muse_spark", "qwen4_exp"}


def wrappers():
    """model_type of the multimodal classes that transformers has for images and text, and vLLM serves."""
    try:
        from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as known

        served = registry_table("_MULTIMODAL_MODELS")
    except (ImportError, OSError, PackageNotFoundError):
        return []
    found = {kind for kind, names in known.items() if {*((names,) if isinstance(names, str) else names)} & served}
    return sorted(found - WRAPPERS_UNBUILT - WRAPPERS_UNREAD)


@pytest.mark.vllm
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", wrappers())
def test_the_text_part_of_a_wrapper_is_what_is_counted(kind):
    """Parameters of the language model and its output, of what transformers builds where a file says nothing."""
    import torch
    import transformers

    configured = transformers.AutoConfig.for_model(kind)
    spec = spec_from_config(configured.to_dict() | {"model_type": kind}, kind, "")
    with torch.device("meta"):
        model = transformers.AutoModelForImageTextToText.from_config(configured)
    parts = [
        part for name, part in model.named_modules() if name.endswith(("language_model", "text_model", "lm_head")) and name.count(".") <= 1
    ]
    text = {id(each): each.numel() for part in parts for each in part.parameters()}
    biases = sum(each.numel() for called, each in model.named_buffers() if called.endswith("e_score_correction_bias"))
    others = 0 if kind == "ernie4_5_vl_moe" else spec.extra_params  # whose experts of pictures are the language model's, too
    assert spec.params - others == pytest.approx(sum(text.values()) + biases, rel=1e-3)
