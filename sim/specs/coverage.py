"""Coverage: which parts of a model were measured, which are priced by the formula alone, and which fields of its file change nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from sim.errors import UsageError
from sim.files import package_path
from sim.specs.architectures import supported
from sim.specs.hf_config import spec_from_config
from sim.specs.mixers import Mixer
from sim.specs.mlps import Mlp
from sim.specs.model import ModelSpec
from sim.specs.precision import DTYPE_BYTES, WEIGHT_ONLY

MEASURED, PRICED, NOT_PRICED = "measured", "priced", "not priced"


class ModelPart(NamedTuple):
    """A part of a model, whether it was measured, is priced or is not, and a remark."""

    name: str
    status: str
    remark: str


# Engine grids and served runs of bf16 and fp8 models on H100 and H200 hold the measured ones; the others have bytes and flops alone.
BLOCKS = {
    "attention": ModelPart("attention over the whole context", MEASURED, "dense models of four families"),
    "window": ModelPart("sliding or chunked window", PRICED, "bytes and pairs of the window"),
    "shared": ModelPart("attention to an earlier layer's cache", PRICED, "read there, kept once"),
    "mla": ModelPart("latent attention", PRICED, "absorbed form in decode"),
    "indexer": ModelPart("latent attention with an indexer", PRICED, "all keys scored, the selection read"),
    "compressed": ModelPart("compressed attention", PRICED, "window, entries and index"),
    "gdn": ModelPart("gated DeltaNet", PRICED, "state read and written"),
    "recurrent": ModelPart("Mamba, delta or lightning attention, convolution", PRICED, "state read and written"),
    "dense": ModelPart("dense MLP", MEASURED, "dense models of four families"),
    "moe": ModelPart("mixture of experts", MEASURED, "two models; expected distinct experts"),
    "latent experts": ModelPart("experts of another width", PRICED, "with the way there and back"),
}
# Weight precisions by how they are known.
PRECISIONS = {
    name: (MEASURED if name in ("bf16", "fp16", "fp8") else PRICED, "read narrow, computed in 16 bits" if name in WEIGHT_ONLY else "")
    for name in DTYPE_BYTES
}


@cache
def engine_architectures() -> tuple[str, dict[str, str]]:
    """(vLLM's version, its text architectures with the model_type of their configurations)."""
    body = json.loads(package_path("sim.specs", "data", "vllm_architectures.json").read_text(encoding="utf-8"))
    return str(body["version"]), dict(body["model_types"])


def unread_architectures() -> list[str]:
    """Text architectures of vLLM whose configurations are refused."""
    read = set(supported())
    return [name for name, model_type in engine_architectures()[1].items() if model_type not in read]


def parts(spec: ModelSpec) -> list[ModelPart]:
    """The parts of a model: its blocks, its stored precision, its KV cache and what of it is not priced."""
    keys = dict.fromkeys(key for group in spec.groups for key in (_mixer(group.mixer), _mlp(group.mlp)) if key)
    found = [BLOCKS.get(key, ModelPart(key, PRICED, "")) for key in keys]
    if spec.checkpoint:
        status, remark = PRECISIONS[spec.checkpoint.dtype]
        found.append(ModelPart(f"{spec.checkpoint.dtype} weights", status, "; ".join(filter(None, (remark, spec.checkpoint.said)))))
        if spec.checkpoint.kv_dtype:
            found.append(ModelPart(f"{spec.checkpoint.kv_dtype} KV cache", PRICED, "asked by the checkpoint"))
    return found + [ModelPart("beside it", NOT_PRICED, note) for note in spec.notes]


def _mixer(mixer: Mixer) -> str:
    if mixer.kind == "attention":
        return "shared" if not mixer.kv_kept else "window" if mixer.window else "attention"
    if mixer.kind == "mla":
        return "indexer" if mixer.indexer else "mla"
    return "" if mixer.kind == "none" else mixer.kind


def _mlp(mlp: Mlp) -> str:
    if mlp.kind == "moe":
        return "latent experts" if mlp.latent else "moe"
    return "" if mlp.kind == "none" else "dense"


def without_effect(config: Mapping[str, Any]) -> list[str]:
    """Fields of a configuration that could be left out and change nothing of what was read: not used, or at their defaults."""
    whole = spec_from_config(config, "", "")
    idle = []
    for name in config:
        try:
            if spec_from_config({key: value for key, value in config.items() if key != name}, "", "") == whole:
                idle.append(name)
        except UsageError:
            continue
    return idle
