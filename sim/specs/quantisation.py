"""The `quantization_config` of a checkpoint: which of its matrices are stored how.

Read from the formats that vLLM 0.33 and SGLang load: fp8, gptq, awq, compressed-tensors, modelopt, mxfp4, bitsandbytes, torchao, quark,
auto-round, fbgemm_fp8, fp_quant, mxfp8. Embedding, output projection, routers and norms stay in 16 bits unless the format says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sim.specs import storage
from sim.specs.blocks import Matrix
from sim.specs.fields import Fields
from sim.specs.module_names import ModuleMap, ModuleRules
from sim.specs.storage import PLAIN, Storage

HEAD, EMBEDDING = "lm_head", "embed_tokens"


@dataclass(frozen=True)
class Quantisation:
    """Storage by matrix. `rules` leave modules out; `only` and `by_module` name modules that alone are quantised, or each its own way;
    `groups` are (storage, targets) pairs of which the first that covers a matrix holds. `tables`: both tables are quantised, too.
    """

    method: str
    base: Storage
    rules: ModuleRules
    kv_dtype: str | None = None
    head: bool = False
    tables: bool = False
    only: ModuleRules | None = None
    by_module: tuple[ModuleMap, dict[str, Storage]] | None = None
    groups: tuple[tuple[Storage, ModuleRules], ...] = ()
    notes: tuple[str, ...] = field(default=())

    def storage(self, matrix: Matrix, layer: int | None = None) -> Storage:
        """Storage of this matrix of this layer."""
        name = matrix.name
        table = self.tables and name in (EMBEDDING, HEAD)
        if (
            matrix.kept
            or (name == EMBEDDING and not table)
            or (name == HEAD and not (self.head or table))
            or self.rules.covers(name, layer)
        ):
            return PLAIN
        if self.by_module is not None:
            algorithm = self.by_module[0].get(name, layer)
            if algorithm is not None:
                return self.by_module[1][algorithm]
            if self.base is PLAIN:
                return PLAIN
        if self.groups:
            return next((each for each, targets in self.groups if targets.covers(name, layer)), PLAIN)
        if self.only is not None and not self.only.covers(name, layer):
            return PLAIN
        return self.base


def read(config: Fields) -> Quantisation | None:
    """The quantisation that a configuration states, None for one that states none. Raises UsageError naming what cannot be read."""
    section = "quantization_config" if config.has("quantization_config") else "compression_config"
    if not config.has(section):
        return _mlx_of(config)
    q = config.section(section)
    if config.has("quantization") and not q.has("quant_method"):  # mlx-lm writes both, alike
        return _mlx_of(config)
    if q.has("quantization"):  # a modelopt file as its export writes it
        q = Fields({**q.section("quantization").data, "quant_method": "modelopt"}, q.where, f"{q.prefix}.quantization")
    method = _method(q)
    if method not in METHODS:
        raise q.fail("quant_method", f"is unsupported: {method!r} (supported: {', '.join(sorted(METHODS))})")
    read_by, keys = METHODS[method]
    found = read_by(q)
    found = replace(found, notes=(*found.notes, *_strange(q, keys)))
    return _four_bit_experts(config, found) if config.data.get("model_type") in ("deepseek_v4", "deepseek_ref") else found


def _four_bit_experts(config: Fields, found: Quantisation) -> Quantisation:
    """DeepSeek V4's fp8 files hold mxfp4 experts unless `expert_dtype` says fp8."""
    dtype = config.text("expert_dtype", "fp4")
    if dtype not in ("fp4", "fp8"):
        raise config.fail("expert_dtype", f"must be fp4 or fp8, not {dtype!r}")
    if found.method != "fp8" or dtype == "fp8":
        return found
    return replace(found, groups=((storage.MXFP4, ModuleRules(["mlp.experts"])), (found.base, ModuleRules(["re:.*"]))))


def _method(q: Fields) -> str:
    if q.has("quant_method"):
        method = q.text("quant_method").lower().replace("_", "-")
    elif q.has("quant_algo"):
        method = "modelopt"
    elif q.bool("load_in_4bit", False) or q.bool("load_in_8bit", False):
        method = "bitsandbytes"
    else:
        raise q.fail("quant_method", "is missing")
    if q.has("quant_algo") and str(q.data["quant_algo"]).upper() == "MIXED_PRECISION":
        return "modelopt"  # a block-fp8 file whose experts a later export replaced
    if method.startswith("modelopt"):
        return "modelopt"
    return _OTHER_NAMES.get(method, method)


_OTHER_NAMES = {
    "auto-gptq": "gptq",
    "gptq-marlin": "gptq",
    "auto-awq": "awq",
    "awq-marlin": "awq",
    "inc": "auto-round",
    "intel/auto-round": "auto-round",
    "gpt-oss-mxfp4": "mxfp4",
    "deepseek-v4-fp8": "fp8",
}


def _left_out(q: Fields, *names: str) -> ModuleRules:
    """Modules that stay as they are, from whichever of these fields the format spells it in."""
    found: list[str] = []
    for name in names:
        value = q.data.get(name)
        found += list(value) if isinstance(value, dict) else q.texts(name)
    return ModuleRules(found)


_IGNORED = ("modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules", "exclude", "llm_int8_skip_modules")


def _fp8(q: Fields) -> Quantisation:
    static = q.text("activation_scheme", "dynamic") == "static"
    base = storage.FP8_STATIC if static else storage.FP8_TENSOR
    if q.has("weight_block_size"):
        rows, columns = _block(q, "weight_block_size")
        base = storage.fp8_blocks(rows, columns, 1 if q.text("scale_fmt", "") == "ue8m0" else 4)
    return Quantisation("fp8", base, _left_out(q, *_IGNORED), _kv(q))


def _block(q: Fields, name: str) -> tuple[int, int]:
    block = q.get(name)
    if not isinstance(block, list) or len(block) != 2 or not all(isinstance(n, int) and n > 0 for n in block):
        raise q.fail(name, f"must be two whole numbers above 0, not {block!r}")
    return block[0], block[1]


def _bits(q: Fields, name: str, allowed: tuple[int, ...]) -> int:
    bits = q.int(name)
    if bits not in allowed:
        raise q.fail(name, f"must be one of {', '.join(map(str, allowed))}, not {bits}")
    return bits


def _group(q: Fields, default: int = 128) -> int:
    """Input channels that share a scale; -1 for a whole row."""
    size = q.data.get("group_size")
    if size is None:
        return default
    if isinstance(size, bool) or not isinstance(size, int) or (size < 1 and size != -1):
        raise q.fail("group_size", f"must be a whole number above 0, or -1, not {size!r}")
    return size


def _gptq(q: Fields) -> Quantisation:
    dynamic = q.section("dynamic").data if q.has("dynamic") else {}
    out = ModuleRules(f"re:{pattern[2:]}" for pattern in dynamic if pattern.startswith("-:"))
    others = {f"re:{pattern.removeprefix('+:')}": own for pattern, own in dynamic.items() if not pattern.startswith("-:")}
    base, groups = _overridden(
        q, "dynamic", others, lambda each: storage.integers(_bits(each, "bits", _BITS), _group(each), True, order=True)
    )
    return Quantisation("gptq", base, out, _kv(q), head=q.bool("lm_head", False), groups=groups)


_BITS = (2, 3, 4, 8)


def _overridden(
    q: Fields, name: str, others: Mapping[str, Any], read_one: Callable[[Fields], Storage]
) -> tuple[Storage, tuple[tuple[Storage, ModuleRules], ...]]:
    """(storage of most modules, groups of those with fields of their own and of all others): the first group that covers one holds."""
    base, groups = read_one(q), []
    for pattern, own in others.items():
        each = Fields({**q.data, **Fields(own, q.where, f"{q.prefix}.{name}.{pattern}").data}, q.where, f"{q.prefix}.{name}.{pattern}")
        groups.append((PLAIN if each.data.get("bits") == 16 else read_one(each), ModuleRules([pattern])))
    return base, (*groups, (base, ModuleRules(["re:.*"]))) if groups else ()


def _awq(q: Fields) -> Quantisation:
    bits = _bits(q, "bits" if q.has("bits") else "w_bit", (4, 8))
    group = _group(q) if not q.has("q_group_size") else q.int("q_group_size")
    return Quantisation("awq", storage.integers(bits, group, q.bool("zero_point", True)), _left_out(q, *_IGNORED), _kv(q))


def _auto_round(q: Fields) -> Quantisation:
    own = q.section("extra_config").data if q.has("extra_config") else {}
    others = {pattern if not set(pattern) & set("*^$+|\\") else f"re:{pattern}": value for pattern, value in own.items()}
    base, groups = _overridden(
        q, "extra_config", others, lambda each: storage.integers(_bits(each, "bits", _BITS), _group(each), not each.bool("sym", True))
    )
    return Quantisation("auto-round", base, _left_out(q, *_IGNORED), _kv(q), groups=groups)


def _bitsandbytes(q: Fields) -> Quantisation:
    eight, four = (q.bool(f"load_in_{bits}bit", q.bool(f"_load_in_{bits}bit", False)) for bits in (8, 4))
    if eight == four:
        raise q.fail("load_in_4bit", f"and load_in_8bit contradict: both are {str(four).lower()}")
    if eight:
        base = Storage("w8a16", 8, 1, 0, scale_bytes=4)
    else:  # blocks of 64 weights; scales of 32 bits, or of 8 bits with one of 32 for 256 of them
        nested = q.bool("bnb_4bit_use_double_quant", False)
        base = Storage("int4", 4, 1, 64, scale_bytes=1 + 4 / 256 if nested else 4)
    return Quantisation("bitsandbytes", base, _left_out(q, *_IGNORED), None)


def _uniform(method: str, base: Storage) -> Callable[[Fields], Quantisation]:
    """A method that stores all it quantises alike, and says no more of it."""
    return lambda q: Quantisation(method, base, _left_out(q, *_IGNORED), _kv(q))


def _mxfp4(q: Fields) -> Quantisation:
    return Quantisation("mxfp4", storage.MXFP4, _left_out(q, *_IGNORED), _kv(q), only=ModuleRules(["mlp.experts"]))


_TABLE = re.compile(r"^(?:language_model\.)?model\.(?=embed_tokens|lm_head)")


def _mlx_of(config: Fields) -> Quantisation | None:
    """MLX's `quantization`: groups of `group_size` input channels with a scale and a bias each; modules named in it have fields of their
    own, or false where they stay as they are.
    """
    if not config.has("quantization") or not isinstance(config.data["quantization"], Mapping):
        return None
    q = config.section("quantization")
    return replace(
        _mlx(q), notes=_strange(q, " ".join(("mode", *(name for name, own in q.data.items() if isinstance(own, Mapping | bool)))))
    )


def _mlx(q: Fields) -> Quantisation:
    own = {name: value for name, value in q.data.items() if isinstance(value, Mapping)}
    out = ModuleRules(_TABLE.sub("", name) for name, value in q.data.items() if value is False)
    base, groups = _mlx_storage(q), []
    for name, value in own.items():
        each = Fields({"group_size": q.data.get("group_size"), **value}, q.where, f"{q.prefix}.{name}")
        groups.append((_mlx_storage(each), ModuleRules([_TABLE.sub("", name)])))
    more = (*groups, (base, ModuleRules(["re:.*"]))) if groups else ()
    return Quantisation("mlx", base, out, None, tables=True, groups=more)


def _mlx_storage(q: Fields) -> Storage:
    mode, bits = q.text("mode", "affine"), _bits(q, "bits", (2, 3, 4, 5, 6, 8))
    if mode in ("mxfp4", "nvfp4", "mxfp8"):
        return {"mxfp4": storage.MXFP4, "nvfp4": storage.NVFP4, "mxfp8": storage.MXFP8}[mode]
    if mode != "affine":
        raise q.fail("mode", f"is unsupported: {mode!r} (supported: affine, mxfp4, mxfp8, nvfp4)")
    return storage.integers(bits, _group(q, 64), zeros=False, scale_bytes=4)  # scale and bias of 16 bits each


def _fp_quant(q: Fields) -> Quantisation:
    dtype = q.text("forward_dtype", "nvfp4")
    if dtype not in ("mxfp4", "nvfp4"):
        raise q.fail("forward_dtype", f"must be mxfp4 or nvfp4, not {dtype!r}")
    return _uniform(f"fp_quant {dtype}", storage.MXFP4 if dtype == "mxfp4" else storage.NVFP4)(q)


# modelopt's algorithms, by name.
_ALGORITHMS = {
    "FP8": storage.FP8_STATIC,
    "FP8_PER_CHANNEL_PER_TOKEN": storage.FP8_CHANNEL,
    "FP8_PB_WO": storage.fp8_blocks(128, 128),
    "FP8_BLOCK_SCALES": storage.fp8_blocks(128, 128),
    "NVFP4": storage.NVFP4,
    "NVFP4_AWQ": storage.NVFP4,
    "W4A16_NVFP4": storage.NVFP4,
    "MXFP8": storage.MXFP8,
    "MXFP4": storage.MXFP4,
    "W4A16_AWQ": storage.integers(4, 128, zeros=False),
    "W4A8_AWQ": storage.integers(4, 128, zeros=False),
    "INT8_SQ": storage.INT8_CHANNEL,
    "W8A16": storage.integers(8, -1, zeros=False),
}


def _modelopt(q: Fields) -> Quantisation:
    algorithm = (q.text("quant_algo") if q.has("quant_algo") else _from_groups(q)).upper()
    rules, kv = _left_out(q, *_IGNORED), _kv(q)
    if algorithm == "MIXED_PRECISION":
        each = q.section("quantized_layers").data
        named = {path: str(value.get("quant_algo", "")).upper() for path, value in each.items() if isinstance(value, dict)}
        if unknown := {value for value in named.values() if value not in _ALGORITHMS}:
            raise q.fail("quantized_layers", f"has unsupported quant_algo {min(unknown)!r} (supported: {', '.join(_ALGORITHMS)})")
        # In a block-fp8 checkpoint all that is not named keeps its blocks, also what this export ignored.
        blocks = q.has("weight_block_size")
        base = _fp8(Fields(q.data, q.where, q.prefix)).base if blocks else PLAIN
        rules = ModuleRules([]) if blocks else rules
        return Quantisation("modelopt mixed", base, rules, kv, head=not blocks, by_module=(ModuleMap(named), _ALGORITHMS))
    if algorithm not in _ALGORITHMS:
        raise q.fail("quant_algo", f"is unsupported: {algorithm!r} (supported: {', '.join(_ALGORITHMS)}, MIXED_PRECISION)")
    base = _ALGORITHMS[algorithm]
    if base.columns > 1 and base.rows == 1 and q.has("group_size"):
        base = base._replace(columns=q.int("group_size"))
    return Quantisation(f"modelopt {algorithm}", base, rules, kv)


def _from_groups(q: Fields) -> str:
    """modelopt's algorithm where only groups are given."""
    for group in q.section("config_groups").data.values():
        weights = group.get("weights", {}) if isinstance(group, dict) else {}
        return "NVFP4" if weights.get("num_bits") == 4 else "FP8"
    raise q.fail("config_groups", "is empty")


def _compressed(q: Fields) -> Quantisation:
    groups: list[tuple[Storage, ModuleRules]] = []
    default = q.text("format", "")
    for name, value in q.section("config_groups").data.items():
        group = Fields(value, q.where, f"{q.prefix}.config_groups.{name}")
        targets = group.texts("targets") or ["Linear"]
        everything = any(target in ("Linear", "re:.*", "FusedMoE") for target in targets)
        stored = _weights(group, group.text("format", default), group.has("input_activations"))
        groups.append((stored, ModuleRules(["re:.*"] if everything else targets)))
    if not groups:
        raise q.fail("config_groups", "is empty")
    head = any("lm_head" in t for g in q.data["config_groups"].values() for t in g.get("targets") or [])
    named = tuple(sorted(groups, key=lambda pair: pair[1].covers("mlp.down_proj", 0) and pair[1].covers("lm_head")))
    return Quantisation("compressed-tensors", groups[0][0], _left_out(q, "ignore"), _kv(q), head=head, groups=named)


def _weights(group: Fields, format_: str, activations: bool) -> Storage:
    """Storage of compressed-tensors' `weights` of one group; weight-only where activations keep 16 bits."""
    w = group.section("weights")
    bits, kind, strategy = w.int("num_bits", 8), w.text("type", "int"), w.text("strategy", "")
    size = w.data.get("group_size")
    if isinstance(size, int) and size > 0:
        strategy = strategy or "group"
    if kind == "float" and bits == 4:
        return storage.MXFP4 if "mxfp4" in format_ or size == 32 else storage.NVFP4
    if kind == "float" and bits == 8:
        if "mxfp8" in format_:
            return storage.MXFP8
        if w.has("block_structure") and strategy == "block":
            rows, columns = _block(w, "block_structure")
            stored = storage.fp8_blocks(rows, columns)
        else:
            static = group.has("input_activations") and not group.section("input_activations").bool("dynamic", False)
            stored = storage.FP8_CHANNEL if strategy == "channel" else storage.FP8_STATIC if static else storage.FP8_TENSOR
        return stored if activations else stored._replace(dtype="w8a16")
    if kind == "int" and bits in (2, 3, 4, 8):
        if bits == 8 and activations:
            return storage.INT8_CHANNEL if strategy != "tensor" else storage.INT8_CHANNEL._replace(rows=0)
        group_size = w.int("group_size") if strategy == "group" else -1
        return storage.integers(bits, group_size, zeros=not w.bool("symmetric", True))
    raise w.fail("num_bits", f"is unsupported: {bits} bits of type {kind!r}")


# torchao's configurations by class or old name: storage of a group of so many input channels.
_TORCHAO: dict[str, Callable[[int], Storage]] = {
    "int4weightonly": lambda group: Storage("int4", 4, 1, group or 128, scale_bytes=4),  # a scale and a zero point of 16 bits
    "int8weightonly": lambda group: storage.integers(8, -1, zeros=False),
    "int8dynamicactivationint8weight": lambda group: storage.INT8_CHANNEL,
    "int8dynamicactivationint4weight": lambda group: storage.integers(4, group or 32, zeros=False),
    "float8weightonly": lambda group: storage.FP8_CHANNEL._replace(dtype="w8a16"),
    "float8dynamicactivationfloat8weight": lambda group: storage.FP8_CHANNEL,
    "float8staticactivationfloat8weight": lambda group: storage.FP8_STATIC,
    "float8dynamicactivationint4weight": lambda group: storage.integers(4, group or 128, zeros=False),
    "nvfp4dynamicactivationnvfp4weight": lambda group: storage.NVFP4,
    "mxdynamicactivationmxweight": lambda group: storage.MXFP4,
}


def _torchao(q: Fields) -> Quantisation:
    kind: Any = q.get("quant_type")
    if isinstance(kind, dict):
        kind = kind.get("default", kind)
    data = kind.get("_data") if isinstance(kind, dict) else None
    for name in ("module_fqn_to_config", "fqn_to_config"):  # a configuration for each module, None for those left as they are
        if isinstance(data, dict) and isinstance(data.get(name), dict):
            each = {path: _torchao_storage(q, own) if own else PLAIN for path, own in data[name].items()}
            base = each.pop("_default", PLAIN)
            groups = [(stored, ModuleRules([path])) for path, stored in each.items()]
            return Quantisation("torchao", base, _left_out(q, *_IGNORED), groups=(*groups, (base, ModuleRules(["re:.*"]))))
    return Quantisation("torchao", _torchao_storage(q, kind), _left_out(q, *_IGNORED))


def _torchao_storage(q: Fields, kind: Any) -> Storage:
    """Storage by one configuration: a class with its data, or an old name."""
    name = kind.get("_type", "") if isinstance(kind, dict) else kind
    data = kind.get("_data", {}) if isinstance(kind, dict) else q.data.get("quant_type_kwargs") or {}
    plain = str(name).lower().replace("_", "").removesuffix("config")
    if plain not in _TORCHAO:
        raise q.fail("quant_type", f"is unsupported: {name!r} (supported: {', '.join(_TORCHAO)})")
    group = data.get("group_size") if isinstance(data, dict) else None
    return _TORCHAO[plain](group if isinstance(group, int) and group > 0 else 0)


# quark's weight dtypes.
_QUARK = {
    "fp8_e4m3": storage.FP8_STATIC,
    "fp4": storage.MXFP4,
    "int8": storage.INT8_CHANNEL,
    "int4": storage.integers(4, 128, zeros=False),
    "mxfp4": storage.MXFP4,
}


def _quark(q: Fields) -> Quantisation:
    top = q.section("global_quant_config")
    weight = top.data.get("weight")
    weight = weight[0] if isinstance(weight, list) and weight else weight
    w = Fields(weight, q.where, f"{top.prefix}.weight")
    dtype = w.text("dtype")
    if dtype not in _QUARK:
        raise w.fail("dtype", f"is unsupported: {dtype!r} (supported: {', '.join(_QUARK)})")
    base = _QUARK[dtype]
    if dtype == "int4" and w.has("group_size"):
        base = base._replace(columns=w.int("group_size"))
    if dtype == "fp8_e4m3" and w.text("qscheme", "per_tensor") == "per_channel":
        base = storage.FP8_CHANNEL
    cached = q.data.get("kv_cache_quant_config")
    return Quantisation(f"quark {dtype}", base, _left_out(q, *_IGNORED), "fp8" if cached else None)


def _experts_int8(q: Fields) -> Quantisation:
    base = storage.integers(8, -1, zeros=False)
    return Quantisation("experts_int8", base, _left_out(q, *_IGNORED), None, only=ModuleRules(["mlp.experts"]))


def _kv(q: Fields) -> str | None:
    """Dtype of the KV cache that the checkpoint has scales for; engines take it unless set otherwise."""
    stated = q.data.get("kv_cache_scheme") or q.data.get("kv_cache_quant_algo")
    if not stated:
        return None
    if isinstance(stated, dict):
        stated = f"{stated.get('type')}{stated.get('num_bits')}"
    # 4-bit caches have no rates here: 8 bits are the nearest, and a note says so
    return "int8" if str(stated).lower() == "int8" else "fp8"


def _strange(q: Fields, keys: str) -> tuple[str, ...]:
    """Notes of what is set and not read, and of a KV cache that is taken for another."""
    known = {*_IGNORED, *_SHARED_KEYS.split(), *keys.split()}
    unread = [name for name, value in q.data.items() if value not in (None, False, "", [], {}) and not known & {name, name.lstrip("_")}]
    notes = [f"not read: {', '.join(unread)}"] if unread else []
    cache = q.data.get("kv_cache_scheme") or q.data.get("kv_cache_quant_algo")
    narrow = cache.get("num_bits") == 4 if isinstance(cache, dict) else "4" in str(cache or "")
    return (*notes, "a KV cache of 4 bits is taken for one of fp8") if narrow else tuple(notes)


# Fields that all methods share, and those that say how a file was made or is packed, which no size depends on.
_SHARED_KEYS = (
    "quant_method config_groups format fmt version producer backend packing_format checkpoint_format meta sym desc_act bits w_bit "
    "kv_cache_scheme kv_cache_quant_algo quantization_status global_compression_ratio model_name_or_path model_file_base_name "
    "static_groups damp_percent true_sequential is_marlin_format quantizer activation_scheme group_size"
)
_BNB = "load_in_8bit load_in_4bit bnb_4bit_compute_dtype bnb_4bit_quant_storage bnb_4bit_quant_type bnb_4bit_use_double_quant"
_OF_ROUNDING = (
    "extra_config amp autoround_version batch_size block_name_to_quantize data_type enable_minmax_tuning enable_norm_bias_tuning "
    "enable_quanted_input gradient_accumulate_steps iters low_gpu_mem_usage lr minmax_lr nsamples scale_dtype seqlen train_bs dataset "
    "act_bits act_data_type act_dynamic act_group_size act_sym super_bits super_group_size to_quant_block_names"
)
# How a method is read, and the fields that are its own
METHODS: dict[str, tuple[Callable[[Fields], Quantisation], str]] = {
    "fp8": (_fp8, "weight_block_size scale_fmt dequantize"),
    "mxfp8": (_uniform("mxfp8", storage.MXFP8), "weight_block_size scale_fmt"),
    "gptq": (_gptq, "dynamic lm_head damp_auto_increment use_cuda_fp16 exllama_config use_exllama max_input_length cache_block_outputs"),
    "awq": (_awq, "q_group_size zero_point do_fuse modules_to_fuse fuse_max_seq_len exllama_config"),
    "compressed-tensors": (_compressed, ""),
    "modelopt": (_modelopt, "quant_algo quantized_layers weight_block_size scale_fmt"),
    "mxfp4": (_mxfp4, "dequantize"),
    "mlx": (_mlx, "mode"),
    "bitsandbytes": (_bitsandbytes, f"{_BNB} llm_int8_enable_fp32_cpu_offload llm_int8_has_fp16_weight llm_int8_threshold"),
    "torchao": (_torchao, "quant_type quant_type_kwargs include_input_output_embeddings untie_embedding_weights"),
    "quark": (_quark, "global_quant_config kv_cache_quant_config export algo_config quant_mode"),
    "auto-round": (_auto_round, _OF_ROUNDING),
    "fbgemm-fp8": (_uniform("fbgemm_fp8", storage.FP8_CHANNEL), "activation_scale_ub"),
    "fp-quant": (
        _fp_quant,
        "forward_dtype forward_method backward_dtype hadamard_group_size pseudoquantization transform_init store_master_weights",
    ),
    "w8a8-fp8": (_uniform("w8a8_fp8", storage.FP8_CHANNEL), ""),
    "w8a8-int8": (_uniform("w8a8_int8", storage.INT8_CHANNEL), ""),
    "experts-int8": (_experts_int8, ""),
}
