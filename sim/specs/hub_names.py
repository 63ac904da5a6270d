"""Names of checkpoints on a model hub: what their suffixes say of the stored weights, and which words of a name say its shape.

    Qwen3-32B-AWQ                    -> Qwen3-32B, awq-int4
    Qwen3-30B-A3B-Instruct-2507-FP8  -> Qwen3-30B-A3B-Instruct-2507, fp8-block
    Qwen3-8B-GGUF:Q4_K_M             -> Qwen3-8B, gguf:q4_k_m
    qwen3:8b                         -> Qwen3-8B, GGUF of Ollama's usual type

Conventions as published by the owners of the repositories; where a layout differs by owner, the owner decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from sim.specs import gguf

# Format of the weights -> the quantization_config that such checkpoints carry
FORMATS: dict[str, dict[str, object]] = {
    "fp8-block": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "fp8-tensor": {"quant_method": "fp8", "activation_scheme": "static"},
    "fp8-channel": {"quant_method": "fbgemm_fp8"},
    "mxfp8": {"quant_method": "mxfp8"},
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "NVFP4"},  # by family: sim.specs.nvfp4_files
    "mxfp4": {"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "mxfp4"}}},
    "awq-int4": {"quant_method": "awq", "bits": 4, "group_size": 128},
    "awq-int8": {"quant_method": "awq", "bits": 8, "group_size": 128},
    "gptq-int4": {"quant_method": "gptq", "bits": 4, "group_size": 128},
    "gptq-int8": {"quant_method": "gptq", "bits": 8, "group_size": 128},
    "w4a16": {"quant_method": "auto-round", "bits": 4, "group_size": 128},
    "w8a16": {"quant_method": "auto-round", "bits": 8, "group_size": 128},
    "w8a8": {"quant_method": "w8a8_int8"},
    "bnb-nf4": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True},
    "bnb-int8": {"quant_method": "bitsandbytes", "load_in_8bit": True},
    "mlx-4bit": {"quant_method": "mlx", "bits": 4, "group_size": 64},
    "mlx-8bit": {"quant_method": "mlx", "bits": 8, "group_size": 64},
    "mlx-mxfp4": {"quant_method": "mlx", "bits": 4, "group_size": 32, "mode": "mxfp4"},
}
# What owners write as -FP8 and -NVFP4: scales of their own, and a KV cache of 8 bits that the file asks for
_BLOCKS = {"qwen", "zai-org", "deepseek-ai", "minimaxai", "stepfun-ai", "moonshotai", "xiaomimimo"}
_BLOCK_FAMILIES = ("qwen", "qwq", "glm-5", "deepseek", "minimax", "step", "kimi", "mimo")
_TENSORS = {"nvidia", "redhatai", "neuralmagic", "amd", "mistralai", "tencent"}
_KV8_OWNERS = {"nvidia": ("nvfp4", "fp8-tensor")}
_NOT_SERVED = "exl2 exl3 aqlm hqq eetq quip vptq gguf-imatrix onnx openvino coreml mlc tensorrt engine"
# Suffix -> format; "16" takes a quantisation off ("gguf:16" all but that of experts that are published in 4 bits), "" says nothing of the
# weights. The longest that fits is taken.
_SUFFIXES: tuple[tuple[str, str], ...] = (
    (r"(?:unsloth[-_])?(?:bnb|nf4)(?:[-_]4bit)?|4bit[-_]bnb", "bnb-nf4"),
    (r"bnb[-_]8bit|8bit[-_]bnb", "bnb-int8"),
    (r"(?:awq|w4a16)[-_]?(?:int|w)?8(?:bit)?|awq[-_]8bit|int8[-_]awq", "awq-int8"),
    (r"(?:int4[-_])?awq(?:[-_]?(?:int4|4bit|w4a16|g128|marlin|lite|fp16mix))*|awq[-_]int4", "awq-int4"),
    (r"(?:int8[-_])?gptq[-_]?(?:int8|8bit|w8a16)", "gptq-int8"),
    (r"(?:int4[-_])?gptq(?:[-_]?(?:int4|4bit|4b|w4a16|g128|128g|marlin|int8mix))*", "gptq-int4"),
    (r"(?:quantized\.|qat[-_])?(?:int4[-_])?w4a16(?:[-_](?:ct|g\d+))?|(?:int4[-_])?auto[-_]?round(?:[-_]int4)?|int4", "w4a16"),
    (r"(?:quantized\.)?(?:int8[-_])?w8a16|int8[-_]auto[-_]?round", "w8a16"),
    (r"(?:quantized\.)?w8a8|int8(?:[-_]dynamic)?", "w8a8"),
    (r"(?:fp8|w8a8)[-_](?:dynamic|ptpc|per[-_]?channel)|(?:ptpc[-_])fp8|fp8[-_]ptpc|ptpc", "fp8-channel"),
    (r"fp8[-_](?:block|blockwise)", "fp8-block"),
    (r"fp8[-_](?:static[-_])?(?:kv|per[-_]?tensor|static)(?:[-_]per[-_]?tensor)?", "fp8-tensor"),
    (r"fp8", "fp8"),
    (r"mxfp8", "mxfp8"),
    (r"(?:nv)?fp4(?:a16)?(?:[-_](?:v\d|w4a4|fp8|qad|awq|w4a16|dynamic))*", "nvfp4"),
    (r"mxfp4(?:a16)?(?:[-_](?:moe|v\d|q[48]))?", "mxfp4"),
    (r"bf16|fp16|f16|bfloat16", "16"),
    (r"(?:mlx[-_])?(?:4bit|q4)(?:[-_](?:mlx|dwq|g\d+|dq|hi))*", "mlx-4bit"),
    (r"(?:mlx[-_])?(?:8bit|q8)(?:[-_](?:mlx|dwq|g\d+))*", "mlx-8bit"),
    (r"gguf|(?:imatrix|i1)[-_]gguf", "gguf"),
    (r"(?:i?q[2-8]_(?:[01k](?:_[sml])?|xs|nl))", "gguf:"),
    (
        r"instruct|chat|it|base|pt|hf|thinking|think|reasoning|reasoning[-_]plus|dpo|sft|rl|rl[-_]zero|preview|mlx|text|"
        r"v\d(?:[._]\d)?|(?:qwen|llama)[-_]distill|\d{4}|\d{6}|ct|qat|unquantized|original|latest|release|turbo|dynamic|unsloth",
        "",
    ),
)
_COMPILED = [(re.compile(rf"(.+?)[-_.:]({pattern})", re.IGNORECASE), kind) for pattern, kind in _SUFFIXES]
# Words that make another model of a family: a name with one that the known name lacks is not read as it
OTHERS = re.compile(
    "flash|air|lite|mini|nano|small|tiny|large|pro|max|plus|ultra|super|medium|micro|omni|vision|vl|audio|moe|draft|eagle3?|mtp|dflash|medusa|"
    "hydra|speculators?|multimodal|assistant|lora|adapter|reward|prm|encoder|reranker|math|coder|code|next|exp|guard|linear"
)


LIKE_FORMAT = re.compile(r".*(?:fp[468]|int[2-8]|awq|gptq|[2-8]bit|w[2-8]a\d|nf4|exl[23]|q[2-8]_).*", re.IGNORECASE)
SIZE_TAG = re.compile(r"(?:[ae]?\d+(?:\.\d+)?(?:x\d+)?[bmt]|scout|maverick)\b", re.IGNORECASE)


class HubName(NamedTuple):
    """A stem to look up, and the format of the weights: a key of FORMATS, `gguf:TYPE`, `gguf:` of no type, "16", or "" for the publisher's
    own. `kv8`: the file asks for a KV cache of 8 bits.
    """

    stem: str
    format: str
    kv8: bool = False


def readings(name: str) -> Iterator[HubName]:
    """What a name may mean, the fewest suffixes taken off first. Raises ValueError for a format that no engine here serves."""
    owner, _, last = name.rpartition("/")
    last, _, kind = last.partition(":")
    found = ""
    if not owner and kind.casefold() == "latest":
        raise ValueError(f"the tag latest says no size: name it, as in {last}:8b")
    if not owner and kind.casefold().endswith("cloud"):
        raise ValueError("runs in Ollama's cloud, not on a GPU of yours")
    if SIZE_TAG.match(kind):  # Ollama's, whose weights are of 4 bits unless the tag says otherwise: qwen3:32b
        last, kind, found = f"{last}-{kind}", "", "gguf:q4_0" if kind.casefold().endswith("qat") else "gguf:"
    try:
        found = _gguf(kind) if kind else found
    except ValueError:
        if owner:
            raise
        last, found = f"{last}-{kind}", "gguf:"  # another word of an Ollama tag: granite4:tiny-h
    if last.lower().endswith(".gguf"):
        last, found = _file_of_gguf(last)
    owner = owner.rpartition("/")[2].casefold()
    for stem, form in _stripped(owner, last, found):
        for each in dict.fromkeys((stem, re.sub(r"^(?:meta|nvidia|hf)[-_]", "", stem, flags=re.IGNORECASE), stem.partition("_")[2])):
            if each:
                yield HubName(each, form, form in _KV8_OWNERS.get(owner, ()))


def _stripped(owner: str, stem: str, form: str) -> Iterator[tuple[str, str]]:
    while True:
        yield stem, form
        fits = [(match, kind) for pattern, kind in _COMPILED if (match := pattern.fullmatch(stem))]
        if not fits:
            if stem.casefold().endswith(tuple(f"-{word}" for word in _NOT_SERVED.split())):
                raise ValueError(f"weights of {stem.rpartition('-')[2]} are served by no engine here")
            return
        match, kind = min(fits, key=lambda fit: len(fit[0][1]))
        stem = match[1]
        if kind == "gguf:":
            form = _gguf(match[2])
        elif kind and (not form or kind == "gguf" or (form, kind) == ("gguf:", "16")):
            form = _owned(owner, stem, kind, form, match[2])


def _owned(owner: str, stem: str, kind: str, form: str, word: str) -> str:
    """The format as its owner means the suffix `word` behind `stem`; a name without an owner is its maker's."""
    if kind == "gguf":
        return form if form.startswith("gguf:") else "gguf:16" if form == "16" else "gguf:"
    if kind == "fp8":
        return (
            "fp8-block"
            if owner in _BLOCKS or (not owner and stem.casefold().startswith(_BLOCK_FAMILIES))
            else "fp8-tensor"
            if owner in _TENSORS
            else "fp8-channel"
        )
    if kind == "mxfp4" and "mlx" in owner:
        return "mlx-mxfp4"
    if kind.startswith("mlx") and not ("mlx" in owner or "mlx" in word.casefold()):
        return "bnb-nf4" if kind == "mlx-4bit" else "bnb-int8"
    return kind


def _gguf(kind: str) -> str:
    """`gguf:TYPE` of what stands behind the colon; dynamic mixes count as their base. Raises ValueError for an unknown type."""
    plain = re.sub(r"^(?:ud|iq?\d*_?)?-", "", kind.casefold()).replace("-", "_")
    if plain in ("f16", "fp16", "bf16"):
        return "gguf:16"
    near = {**dict.fromkeys(("q4_k_xl", "q4_k_l", "q4_k"), "q4_k_m"), "q5_k_xl": "q5_k_m", "q6_k_xl": "q6_k", "q8_k_xl": "q8_0"}
    near |= {"q3_k_xl": "q3_k_m", "q3_k_l": "q3_k_m", "q3_k_s": "q3_k_m", "q2_k_xl": "q2_k", "q2_k_l": "q2_k", "mxfp4": "mxfp4_moe"}
    plain = near.get(plain, plain)
    if plain not in gguf.GGUF:
        raise ValueError(f"GGUF type {kind} is not known; known: {', '.join(gguf.GGUF)}")
    return f"gguf:{plain}"


def _file_of_gguf(file: str) -> tuple[str, str]:
    """(stem, format) of a file's name: Qwen3-8B-Q4_K_M.gguf."""
    match = re.fullmatch(r"(.+?)[-._]((?:UD-)?(?:i?q\d|mxfp4|b?f16)\w*)\.gguf", file, re.IGNORECASE)
    return (match[1], _gguf(match[2])) if match else (file[:-5], "gguf:")


def inner_format(name: str) -> str:
    """The format that stands before a word of a fine-tune's own: `16` in gpt-oss-20b-BF16-abliterated; "" where none does. Raises
    ValueError for a word that looks like a format and is none known here.
    """
    owner, _, last = name.rpartition("/")
    parts = last.partition(":")[0].split("-")
    for end in range(len(parts) - 1, 1, -1):
        *_, (_, form) = _stripped(owner.casefold(), "-".join(parts[:end]), "")
        if form:
            return form
    strange = next((part for part in parts[1:] if LIKE_FORMAT.fullmatch(part)), None)
    if strange is not None:
        raise ValueError(f"weights in {strange} are not known here")
    return ""


def words(name: str) -> tuple[str, ...]:
    """Words of a name in order, a family's number apart: `Qwen3-30B-A3B` is qwen, 3, 30b, a3b."""
    parts = [word for word in re.split(r"[^a-z0-9.]+", name.casefold()) if word]
    split = (re.fullmatch(r"([a-z]{3,})(\d.*)", word) for word in parts)
    return tuple(each for match, word in zip(split, parts, strict=True) for each in (match.groups() if match else (word,)))


def sizes(given: tuple[str, ...]) -> set[str]:
    """The words that say a size: 30b, a3b, 8x7b, e4b, 270m."""
    return {word for word in given if re.fullmatch(r"[ae]?\d+(?:\.\d+)?(?:x\d+(?:\.\d+)?)?[bmt]", word)}


def is_named_after(name: tuple[str, ...], known: tuple[str, ...]) -> bool:
    """Whether all words of a known name stand in this one in their order, and the others say neither a size nor another model of the
    family: `Hermes-3-Llama-3.1-8B` is named after `Llama-3.1-8B`.
    """
    rest = iter(name)
    if not known or not all(word in rest for word in known):
        return False
    others = {part for word in set(name) - set(known) for part in (word, *word.split("."))}
    return not (sizes(tuple(others)) or any(map(OTHERS.fullmatch, others)))
