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
    path = Path(find_spec("vllm").submodule_search_locations[0]) / "model_executor/models/registry.py"
    tables = {
        each.targets[0].id: each.value
        for each in ast.parse(path.read_text()).body
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name)
    }
    assert set(ARCHITECTURES) == set(ast.literal_eval(tables["_TEXT_GENERATION_MODELS"]))


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
