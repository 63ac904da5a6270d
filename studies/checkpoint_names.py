"""Writes the packaged table of checkpoints (sim/specs/data/checkpoints.json) from a list of hub ids and the configurations of their shapes.

    python -m studies.checkpoint_names REFERENCE    # a folder with hub_ids.csv, shape_sources.csv and shapes/*.json

Fields of a configuration that change nothing are left out, and so are names that a rule of sim.specs.hub_names already reads.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sim.errors import UsageError
from sim.files import package_path, write_text
from sim.specs import checkpoint_names
from sim.specs.hf_config import spec_from_config
from sim.specs.hub_names import HubName, readings, sizes, words
from sim.specs.lookup import build_index, key
from sim.specs.models import catalogue_config, get_model, list_models, model_aliases
from studies.program import program

# The list's words for a format -> ours; what is not here is taken as the rule says
FORMATS = {
    "bf16": "",
    "bnb-nf4": "bnb-nf4",
    "mlx-4bit": "mlx-4bit",
    "mlx-8bit": "mlx-8bit",
    "mlx-mxfp4": "mlx-mxfp4",
    "fp8-block": "fp8-block",
    "awq-int4-g128": "awq-int4",
    "awq-int4": "awq-int4",
    "awq-int8": "awq-int8",
    "gptq-int4-g128": "gptq-int4",
    "gptq-int8-g128": "gptq-int8",
    "nvfp4": "nvfp4",
    "nvfp4 (mixed precision, modelopt)": "nvfp4",
    "mxfp4": "mxfp4",
    "mxfp4 (compressed-tensors)": "mxfp4",
    "mxfp8": "mxfp8",
    "fp8-tensor": "fp8-tensor",
    "fp8-channel": "fp8-channel",
    "compressed-tensors w8a8 (fp8 channel, dynamic)": "fp8-channel",
    "compressed-tensors w8a8": "w8a8",
    "compressed-tensors w4a16": "w4a16",
}

# Configurations that lack the word, of models whose published size says that one table serves input and output
TIED = {"Phi-4-mini": "3.8B", "Qwen2.5-VL-3B": "3.8B", "Qwen2.5-Math-1.5B": "1.5B", "Qwen3.5-2B": "2B", "SmolLM2-1.7B": "1.7B"}

LONGROPE = {"type": "longrope"}  # of Phi's, which lists of widths leave out
FROM_MEMORY = "composed: widths as published, from memory; parameters agree with the published"

# What Ollama and others call a base, where no rule reads it: distilled models by size, versions of one shape, sizes beside the name
ALIASES = {
    "Llama-3.1-70B": ["deepseek-r1-70b", "Hermes-4-70B", "Hermes-3-70B"],
    "Llama-3.1-405B": ["Hermes-4-405B", "Hermes-3-405B"],
    "Qwen2.5-32B": ["deepseek-r1-32b"],
    "Qwen2.5-14B": ["deepseek-r1-14b"],
    "Qwen2.5-Math-7B": ["deepseek-r1-7b"],
    "Qwen2.5-Math-1.5B": ["deepseek-r1-1.5b"],
    "Qwen3-8B": ["deepseek-r1-8b"],
    "DeepSeek-V3": ["deepseek-r1-671b", "deepseek-v3-671b"],
    "DeepSeek-V3.1": ["deepseek-v3.1-671b"],
    "Mistral-Small-3.1-24B": ["Mistral-Small-3.2-24B", "devstral-24b", "magistral-24b"],
    "Mistral-Small-24B": ["mistral-small-24b"],
    "Mistral-Nemo-12B": ["mistral-nemo-12b"],
    "Mistral-Large-2407": ["mistral-large-123b"],
    "Phi-4": ["phi4-14b", "phi4-reasoning-14b"],
    "Phi-4-mini": ["phi4-mini-3.8b"],
    "Phi-3-mini-4k": ["phi3-3.8b", "phi3-mini"],
    "Phi-3.5-mini": ["phi3.5-3.8b"],
    "Granite-3.0-8B": ["Granite-3.1-8B", "Granite-3.2-8B", "Granite-3.3-8B"],
    "Granite-3.1-2B": ["Granite-3.2-2B", "Granite-3.3-2B"],
    "Command-R-35B": ["command-r", "c4ai-command-r-v01", "c4ai-command-r-08-2024"],
    "GLM-4.6": ["glm-4.6-357b"],
    "GLM-4.5-Air": ["INTELLECT-3", "INTELLECT-3.1"],
    "Qwen2.5-0.5B": ["Qwen2-0.5B"],
    "Qwen3-14B": ["Hermes-4-14B"],
    "Seed-OSS-36B": ["Hermes-4.3-36B"],
    "Command-A-111B": ["c4ai-command-a-03-2025", "command-a"],
    "Command-R-plus-104B": ["c4ai-command-r-plus", "c4ai-command-r-plus-08-2024", "command-r-plus"],
    "Phi-3-medium-14B": ["Phi-3-medium-128k", "Phi-3-medium-4k", "phi3-14b"],
    "OLMoE-1B-7B": ["OLMoE-1B-7B-0924", "OLMoE-1B-7B-0125"],
    "Nemotron-H-8B": ["Nemotron-H-8B-Reasoning-128K"],
    "Nemotron-H-47B": ["Nemotron-H-47B-Reasoning-128K"],
    "Step-3.7-Flash": ["Step-3.5-Flash"],  # its 45 layers are named by SGLang 0.5.23, its 196B and 11B are this shape's
    "Llama-4-Scout": ["llama4-16x17b"],
    "Llama-4-Maverick": ["llama4-128x17b"],
}
# Contexts of versions whose widths are the base's: Granite 3.1's is in its 2B's configuration
CONTEXTS = {f"Granite-3.{version}-8B{end}": 131072 for version in (1, 2, 3) for end in ("", "-Instruct", "-Base")}
CONTEXTS |= {"Step-3.5-Flash": 262144} | {f"Nemotron-H-{size}-Reasoning-128K": 131072 for size in ("8B", "47B")}  # their cards'
CONTEXTS |= dict.fromkeys(("Phi-3-medium-4k-instruct", "Phi-3-mini-4k-instruct", "Phi-3-mini-4k"), 4096)
STORED = {
    "mistralai/Mistral-Large-3-675B-Instruct-2512": "fp8-tensor",
    "mistralai/Ministral-3-14B-Instruct-2512": "fp8-tensor",  # as the 3B and 8B beside it
    "QuantTrio/DeepSeek-V3.2-Exp-AWQ-Lite": "awq-int4",
    "amd/Kimi-K2.6-MXFP4": "mxfp4",
    "amd/Kimi-K2.7-Code-MXFP4": "mxfp4",
}
NEMOTRON_H = {
    "model_type": "nemotron_h",
    "num_key_value_heads": 8,
    "head_dim": 128,
    "n_groups": 8,
    "mamba_head_dim": 64,
    "vocab_size": 131072,
    "max_position_embeddings": 8192,
}
# Shapes of which the list's `missing.txt` has the widths, and the rest stands on the card or in the name, or that were read since; _off
# checks the parameters
COMPOSED: dict[str, tuple[str, dict[str, Any]]] = {
    "Kimi-K2-Thinking": (
        "composed: widths of moonshotai/Kimi-K2-Instruct; stored as the text part of moonshotai/Kimi-K2.5, of its family",
        catalogue_config("Kimi-K2")
        | {
            "max_position_embeddings": 262144,
            "quantization_config": {
                "config_groups": {"group_0": {"weights": {"group_size": 32, "num_bits": 4}}},
                "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"],
                "quant_method": "compressed-tensors",
            },
        },
    ),
    "ERNIE-4.5-300B-A47B": (
        "composed: widths as read (reference list); 64 experts, 8 of them active, of the model card; their width from the 300B and 47B of "
        "the name",
        {
            "model_type": "ernie4_5_moe",
            "hidden_size": 8192,
            "num_hidden_layers": 54,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "intermediate_size": 28672,
            "moe_intermediate_size": 3584,
            "moe_num_experts": 64,
            "moe_k": 8,
            "moe_num_shared_experts": 0,
            "moe_layer_start_index": 3,
            "moe_layer_end_index": 53,
            "moe_layer_interval": 1,
            "vocab_size": 103424,
            "tie_word_embeddings": False,
            "max_position_embeddings": 131072,
        },
    ),
    "Ministral-3-14B": (
        "composed: NVIDIA-NeMo/Megatron-Bridge provider (PyPI megatron-bridge 0.3.1); text part only",
        {
            "model_type": "ministral3",
            "hidden_size": 5120,
            "num_hidden_layers": 40,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "intermediate_size": 16384,
            "vocab_size": 131072,
            "tie_word_embeddings": False,
            "max_position_embeddings": 262144,
        },
    ),
    "Solar-Open-100B": (
        "defaults: transformers 5.24.0 configuration defaults (documented checkpoint of the class)",
        {
            "model_type": "solar_open",
            "hidden_size": 4096,
            "num_hidden_layers": 48,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "moe_intermediate_size": 1280,
            "n_routed_experts": 128,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "vocab_size": 196608,
            "tie_word_embeddings": False,
            "max_position_embeddings": 131072,
        },
    ),
    "Nemotron-H-8B": (
        "composed: NVIDIA-NeMo/Megatron-Bridge provider (PyPI megatron-bridge 0.3.1)",
        NEMOTRON_H
        | {
            "hidden_size": 4096,
            "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
            "intermediate_size": 21504,
            "mamba_num_heads": 128,
            "num_attention_heads": 32,
            "ssm_state_size": 128,
        },
    ),
    "Nemotron-H-47B": (
        "composed: NVIDIA-NeMo/Megatron-Bridge provider (PyPI megatron-bridge 0.3.1)",
        NEMOTRON_H
        | {
            "hidden_size": 8192,
            "hybrid_override_pattern": (
                "M-M-M-M-M-M-M-M-M*-M-M-M-M-M-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-M-M---MM---M-M*-M-M-M-M-M-"
            ),
            "intermediate_size": 30720,
            "mamba_num_heads": 256,
            "num_attention_heads": 64,
            "ssm_state_size": 256,
        },
    ),
    "Granite-4.0-H-Small": (
        "composed: widths and counts as read (reference list); the order of its layers, which changes no price within a stage, is even",
        {
            "model_type": "granitemoehybrid",
            "hidden_size": 4096,
            "num_hidden_layers": 40,
            "layer_types": (["mamba"] * 5 + ["attention"] + ["mamba"] * 4) * 4,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "num_local_experts": 72,
            "num_experts_per_tok": 10,
            "intermediate_size": 768,
            "shared_intermediate_size": 1536,
            "mamba_n_heads": 128,
            "mamba_d_head": 64,
            "mamba_d_state": 128,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
            "mamba_n_groups": 1,
            "vocab_size": 100352,
            "tie_word_embeddings": True,
            "max_position_embeddings": 131072,
        },
    ),
}


@program("checkpoint_names", "REFERENCE")
def main(argv: Sequence[str]) -> int:
    source = Path(argv[0])
    rows = list(csv.DictReader((source / "hub_ids.csv").read_text(encoding="utf-8").splitlines()))
    for row in rows:  # the list gives the base without its format
        row["base"] = next((name for name in COMPOSED if f"/{name}" in row["hub_id"]), row["base"])
    grades = {row["shape"]: row for row in csv.DictReader((source / "shape_sources.csv").read_text(encoding="utf-8").splitlines())}
    shapes: dict[str, Any] = {}
    for file in sorted((source / "shapes").glob("*.json")):
        try:
            config = pruned(json.loads(file.read_text(encoding="utf-8")))
        except UsageError as error:
            print(f"left out: {file.stem}: {error}")
            continue
        if wrong := _off(file.stem, config):
            print(f"left out: {file.stem}: {wrong}")
            continue
        said = f"{grades[file.stem]['grade']}: {grades[file.stem]['source']}"
        if file.stem in TIED:
            (config.get("text_config") or config)["tie_word_embeddings"] = config["tie_word_embeddings"] = True
            said += f"; tied by the published {TIED[file.stem]}"
        if file.stem == "Phi-4-mini":
            config |= {"original_max_position_embeddings": 4096, "rope_scaling": LONGROPE}
        shapes[file.stem] = {"source": said, "config": config}
    text = Path(__file__).with_name("remembered_shapes.json").read_text(encoding="utf-8")
    remembered = {name: (f"{FROM_MEMORY} {params}", config) for name, (params, config) in json.loads(text).items()}
    for name, (said, config) in (COMPOSED | remembered).items():
        if wrong := _off(name, config):
            raise SystemExit(f"{name}: {wrong}")
        shapes[name] = {"source": said, "config": pruned(config)}
    table: dict[str, Any] = {"shapes": shapes, "names": {}, "stored": {}, "contexts": {}}
    _names(table, [row for row in rows if row["base"] in shapes or row["base"] in list_models()])
    for base, stems in ALIASES.items():
        table["names"].setdefault(base, []).extend(stem for stem in stems if not _is_read(stem, base))
    table["contexts"] |= {key(name): length for name, length in CONTEXTS.items()}
    table["stored"] |= {key(name): form for name, form in STORED.items()}
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).replace('},"', '},\n"')
    write_text(package_path("sim.specs", "data", "checkpoints.json"), text + "\n")
    print(f"{len(rows)} ids, {len(shapes)} shapes, {sum(map(len, table['names'].values()))} names, {len(text.encode()):,} bytes")
    return 0


def _off(name: str, config: dict[str, Any]) -> str:
    """What is wrong with a configuration whose parameters are not those that its name says; counts of experts' shapes are rounded more."""
    billions = [float(size[:-1]) for size in sizes(words(name)) if size[0].isdigit() and size.endswith("b") and "x" not in size]
    params = spec_from_config(config, "", "").params / 1e9
    return f"{params:.4g}B parameters" if billions and billions[0] >= 20 and not 0.85 < params / billions[0] < 1.15 else ""


def pruned(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration without the fields that change nothing of what is read."""
    kept = json.loads(json.dumps(config))
    whole = spec_from_config(kept, "", "")
    for holder, name in list(_fields(kept)):
        if name in ("model_type", "quantization_config"):
            continue
        value = holder.pop(name)
        try:
            if spec_from_config(kept, "", "") == whole:
                continue
        except (UsageError, AttributeError):
            pass
        holder[name] = value
    return dict(kept)


def _fields(value: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """(mapping, key) of every field, inner ones after those that hold them."""
    if isinstance(value, dict):
        for name, each in list(value.items()):
            yield value, name
            if name in value:
                yield from _fields(each)
    elif isinstance(value, list):
        for each in value:
            yield from _fields(each)


def _names(table: dict[str, Any], rows: Sequence[dict[str, str]]) -> None:
    """Stems, formats and contexts that no rule tells, of these ids."""
    checkpoint_names._table = lambda: table  # type: ignore[assignment]
    checkpoint_names._stems.cache_clear()
    index = _index()
    for row in sorted(rows, key=lambda row: len(row["hub_id"])):
        name, base = row["hub_id"], row["base"]
        try:
            found = checkpoint_names.find(name, index)
        except UsageError:
            found = None
        if found is not None and found.base in index.values() and not found.relative:
            continue  # the catalogue's own
        if found is None or found.base != base or found.relative:
            stem = _shortest_stem(name)
            if stem is None:
                print(f"not read: {name} ({base})")
                continue
            table["names"].setdefault(base, []).append(stem)
            checkpoint_names._stems.cache_clear()
    for row in rows:  # the same without a word such as Instruct
        for each in list(_readings(row["hub_id"]))[1:]:
            known = words(each.stem)
            if (
                each.stem in row["hub_id"].split("/")[-1].split("_")[0]
                and (sizes(known) or len(known) > 2)
                and checkpoint_names.find(each.stem, index) is None
            ):
                table["names"].setdefault(row["base"], []).append(each.stem)
                checkpoint_names._stems.cache_clear()
    _stored_and_contexts(table, rows, index)


def _is_read(stem: str, base: str) -> bool:
    """Whether a rule reads the stem as the base."""
    found = checkpoint_names.find(stem, _index())
    return found is not None and found.base == base and not found.relative


def _index() -> dict[str, str]:
    """{key: name} of the model catalogue."""
    return build_index(
        (name, [form for alias in model_aliases(name) for form in (alias, alias.rsplit("/", 1)[-1])]) for name in list_models()
    )


def _stored_and_contexts(table: dict[str, Any], rows: Sequence[dict[str, str]], index: Mapping[str, str]) -> None:
    """Formats and contexts that no rule tells."""
    by_stem: dict[str, set[tuple[str, str]]] = {}
    for row in rows:
        try:
            found = checkpoint_names.find(row["hub_id"], index)
        except UsageError as error:
            print(error)
            continue
        if found is None:
            continue
        stated = FORMATS.get(row["format"])
        native = _stored_narrow(table, found.base)
        ours = "" if found.format == "16" and not native else found.format
        kv8 = row["kv_dtype"] == "fp8"
        if stated is not None and (stated, kv8) != (ours, found.kv8) and not (native and not ours):
            print(f"stored otherwise: {row['hub_id']}: {row['format']} {row['kv_dtype']} (by rule: {ours} {found.kv8})")
            table["stored"][key(row["hub_id"])] = (stated or "16") + "/kv8" * kv8
        if row["context_length"].isdecimal():
            read_as = list(readings(row["hub_id"]))
            plain = (each.stem for each in read_as if each.format == read_as[-1].format and not each.stem.lower().endswith("-gguf"))
            stem = next(plain)  # its format's suffixes off, all else kept
            by_stem.setdefault(key(stem), set()).add((found.base, row["context_length"]))
    for stem, said in by_stem.items():
        contexts = {int(length) for _, length in said}
        base = next(iter(said))[0]
        if len(contexts) == 1 and contexts != {_context(table, base)}:
            table["contexts"][stem] = contexts.pop()


def _context(table: dict[str, Any], base: str) -> int:
    spec = spec_from_config(table["shapes"][base]["config"], "", "") if base in table["shapes"] else get_model(base)
    return spec.max_context


def _stored_narrow(table: dict[str, Any], base: str) -> bool:
    """Whether the base's own weights have fewer than 16 bits."""
    spec = spec_from_config(table["shapes"][base]["config"], "", "") if base in table["shapes"] else get_model(base)
    return spec.checkpoint is not None or spec.expert_bits is not None


def _readings(name: str) -> list[HubName]:
    try:
        return list(readings(name))
    except ValueError:
        return []


def _shortest_stem(name: str) -> str | None:
    """The stem with its format's suffixes taken off, and no word that may say another shape."""
    found = None
    for each in _readings(name):
        found = each.stem if found is None or len(each.stem) < len(found) else found
        if not re.search(r"[-_](instruct|chat|it|base|hf|awq|gptq|fp8|gguf|bnb|4bit|8bit)", each.stem, re.IGNORECASE):
            return each.stem
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
