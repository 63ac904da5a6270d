"""Flags of `vllm serve`, SGLang's server and llama.cpp's, as fields of Limits and of a deployment."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sim.engine.other_flags import known_without_effect, refusal
from sim.engine.versions import known_version
from sim.errors import UsageError
from sim.specs.precision import KV_DTYPES


def _text(value: str) -> str:
    return value


def _count(value: str) -> int:
    if not re.fullmatch(r"0*[1-9]\d*", value):
        raise ValueError(f"must be a whole number from 1 up, got {value[:40]!r}")
    return int(value)


def _large(value: str) -> int:
    """A count as vLLM reads it: 16k is 16,000, 16K is 16,384."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgt])|(\d+)([KMGT])", value)
    if found is None:
        return _count(value)
    number, letter = found[1] or found[3], found[2] or found[4]
    return int(float(number) * (1000 if found[1] else 1024) ** ("kmgt".index(letter.lower()) + 1))


def _length(value: str) -> str:
    """max_model_len: a count, or what the engine is to find by itself."""
    return "auto" if value in ("auto", "-1") else str(_large(value)) if re.match(r"\d", value) else value


def _dtype(value: str) -> str | None:
    return {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "auto": None}.get(value, value)


def _kv(value: str) -> str | None:
    """KV dtype as vLLM and SGLang spell it. ValueError for caches of other widths, which no rate here is of."""
    if value.startswith("fp8"):
        return "fp8"
    if value not in ("auto", "bfloat16", "float16", "half", "bf16", "fp16", "int8", "fp32", "float32"):
        raise ValueError(f"{value[:40]} is not simulated: caches of 16 bits, fp8 and int8 are")
    return _dtype(value)


def _quantization(value: str) -> str | None:
    return "fp8" if value in ("fp8", "w8a8_fp8") else "int8" if value == "w8a8_int8" else None  # others are the checkpoint's own


def _several(value: str) -> bool:
    return int(value) > 1


def _cache_type(value: str) -> str:
    """KV dtype as llama.cpp spells it. ValueError for one that it does not have."""
    found = {"f16": "fp16", "f32": "fp32", "bf16": "bf16"}.get(value.lower(), value.lower())
    if found not in KV_DTYPES:
        raise ValueError(f"{value[:40]} is no type of a cache")
    return found


def _or_auto(value: str) -> int | None:
    """A count of llama.cpp's, whose 0 or -1 is what it takes anyway."""
    return None if value in ("0", "-1") else _count(value)


def _micro_batch(value: str) -> dict[str, int]:
    return {"n_ubatch": _count(value)}


def _all_layers(value: str) -> bool:
    """All layers on the GPU. ValueError for a number that may be fewer."""
    if value in ("all", "auto", "-1") or (value.isdecimal() and int(value) >= 99):
        return True
    raise ValueError(f"{value[:40]}: layers on the CPU are not simulated; 99 puts all on the GPU")


def _option(name: str, read: Callable[[str], Any]) -> Callable[[str], dict[str, Any]]:
    """Reads a value as the engine's own option of that name."""
    return lambda value: {name: read(value)}


def gguf_name(value: str) -> str:
    """A GGUF file or repository as MODEL:TYPE, by its name: `models/Qwen3-8B-Q4_K_M.gguf`, `org/Qwen3-8B-GGUF:Q8_0`."""
    name, _, kind = value.rsplit("/", 1)[-1].removesuffix(".gguf").partition(":")
    name = re.sub(r"-GGUF$", "", name, flags=re.IGNORECASE)
    found = re.fullmatch(r"(.+?)[-._]((?:i?q\d|mxfp4|b?f16)\w*)", name, re.IGNORECASE)
    name, kind = (found[1], found[2]) if found and not kind else (name, kind)
    return f"{name}:{kind.lower()}"


class NotSimulated(UsageError):
    """A flag that would move the answer, or may, and that no setting here stands for."""


Reader = Callable[[str], Any]
SHARED: dict[str, tuple[str, Reader]] = {
    "tensor-parallel-size": ("tp", _count),
    "tp": ("tp", _count),
    "pipeline-parallel-size": ("pipeline_parallel_size", _count),
    "pp": ("pipeline_parallel_size", _count),
    "q": ("dtype", _quantization),
    "data-parallel-size": ("data_parallel_size", _count),
    "dp": ("data_parallel_size", _count),
    "dtype": ("dtype", _dtype),
    "quantization": ("dtype", _quantization),
    "kv-cache-dtype": ("kv_dtype", _kv),
}
FLAGS: dict[str, dict[str, tuple[str, Reader]]] = {
    "vllm": SHARED
    | {
        "model": ("model", _text),
        "model_id": ("model", _text),
        "max-num-seqs": ("max_num_seqs", _text),
        "max-num-batched-tokens": ("max_num_batched_tokens", _large),
        "max-model-len": ("max_model_len", _length),
        "gpu-memory-utilization": ("gpu_memory_utilization", _text),
        "block-size": ("block_size", _count),
        "long-prefill-token-threshold": ("long_prefill_token_threshold", int),
        "scheduling-policy": ("policy", _text),
        "num-gpu-blocks-override": ("num_gpu_blocks", _count),
        "kv-offloading-size": ("kv_offloading_size", float),
        "prefill-schedule-interval": ("prefill_schedule_interval", int),
        "max-lora-rank": ("max_lora_rank", _count),
        "max-loras": ("max_loras", _count),
        "engine-version": ("engine_version", known_version),
        "linear-backend": ("linear_backend", str.lower),
        "kv-cache-memory-bytes": ("options", _option("kv_cache_memory_bytes", _large)),
    },
    "sglang": SHARED
    | {
        "model-path": ("model", _text),
        "model": ("model", _text),
        "tp-size": ("tp", _count),
        "dp-size": ("data_parallel_size", _count),
        "max-running-requests": ("max_num_seqs", _text),
        "chunked-prefill-size": ("max_num_batched_tokens", _count),
        "context-length": ("max_model_len", _text),
        "mem-fraction-static": ("gpu_memory_utilization", _text),
        "page-size": ("block_size", _count),
        "max-total-tokens": ("max_total_tokens", _count),
        "schedule-policy": ("options", _option("schedule_policy", _text)),
        "max-prefill-tokens": ("options", _option("max_prefill_tokens", _count)),
        "cuda-graph-max-bs": ("options", _option("cuda_graph_max_bs", _count)),
        "cuda-graph-max-bs-decode": ("options", _option("cuda_graph_max_bs", _count)),
        "ep-size": ("enable_expert_parallel", _several),
        "ep": ("enable_expert_parallel", _several),
    },
    "llamacpp": {
        "m": ("model", gguf_name),
        "model": ("model", gguf_name),
        "hf": ("model", gguf_name),
        "hf-repo": ("model", gguf_name),
        "c": ("max_model_len", _or_auto),
        "ctx-size": ("max_model_len", _or_auto),
        "np": ("max_num_seqs", _or_auto),
        "parallel": ("max_num_seqs", _or_auto),
        "b": ("max_num_batched_tokens", _count),
        "batch-size": ("max_num_batched_tokens", _count),
        "ub": ("options", _micro_batch),
        "ubatch-size": ("options", _micro_batch),
        "ctk": ("key_dtype", _cache_type),
        "cache-type-k": ("key_dtype", _cache_type),
        "ctv": ("value_dtype", _cache_type),
        "cache-type-v": ("value_dtype", _cache_type),
        "ngl": ("all_layers", _all_layers),
        "gpu-layers": ("all_layers", _all_layers),
        "n-gpu-layers": ("all_layers", _all_layers),
    },
}
SWITCHES: dict[str, tuple[str, Any]] = {
    "ep": ("enable_expert_parallel", True),
    "enable-expert-parallel": ("enable_expert_parallel", True),
    "enable-prefix-caching": ("enable_prefix_caching", True),
    "no-enable-prefix-caching": ("enable_prefix_caching", False),
    "disable-radix-cache": ("enable_prefix_caching", False),
    "enable-chunked-prefill": ("enable_chunked_prefill", True),
    "no-enable-chunked-prefill": ("enable_chunked_prefill", False),
    "enforce-eager": ("enforce_eager", True),
    "disable-cuda-graph": ("enforce_eager", True),
    "enable-lora": ("enable_lora", True),
    "async-scheduling": ("options", {"async_scheduling": True}),
    "no-async-scheduling": ("options", {"async_scheduling": False}),
    "kv-unified": ("options", {"kv_unified": True}),
    "kvu": ("options", {"kv_unified": True}),
    "language-model-only": ("options", {"language_model_only": True}),
    "disable-overlap-schedule": ("options", {"overlap_schedule": False}),
}
# Fields of a configuration that say how long a context may be, and no more: what of it is served is --max-model-len's
POSITIONS = {"rope_scaling", "rope_parameters", "rope_theta", "max_position_embeddings", "original_max_position_embeddings"}
OVERRIDES = ("hf-overrides", "json-model-override-args", "rope-scaling")
JOINED = {"-O": "--compilation-config", "-cc": "--compilation-config", "-sc": "--speculative-config"}
LEVELS: tuple[tuple[str, ...], ...] = (("--enforce-eager",), ("--compilation-config", '{"cudagraph_mode": "PIECEWISE"}'), (), ())
DRAFTERS = {"ngram": "ngram", "eagle": "eagle", "eagle3": "eagle3", "mtp": "mtp", "nextn": "mtp", "draft_model": "draft_model"}
# Connectors that hand KV to another server, whose role the file says elsewhere; those that keep it in this host's memory
BETWEEN = re.compile(r"Nixl|P2pNccl|Mooncake(?!Store)|PyNccl|MoRIIO|Decode|DynamoNixl", re.IGNORECASE)
USUAL_RULES: dict[str, tuple[Any, ...]] = {  # of a host tier: what is simulated
    "eviction_policy": ("lru",), "blocks_per_chunk": (1,), "spec_name": ("CPUOffloadingSpec",), "lazy_offload": (False,),
    "offload_prompt_only": (True,), "sync_load_budget_bytes": (0,), "cache_policy": ("LRU",), "lmcache.cache_policy": ("LRU",),
    "save_decode_cache": (False,), "lmcache.save_decode_cache": (False,), "secondary_tiers": ([],),
}  # fmt: skip
HOST_RULES = {"store_threshold": "store_threshold", "max_tracker_size": "max_tracker_size", "block_size": "chunk_tokens"}
LMCACHE_CHUNK = 256  # tokens, by default
WITHIN = re.compile(r"Offloading|LMCacheConnectorV1|SimpleCPUOffload")


def _joined(words: Sequence[str]) -> list[str]:
    """vLLM's words with parts of a flag's JSON object (`--speculative-config.method mtp`, `--spec-tokens 2`, `-cc.cudagraph_mode=NONE`)
    put together, and levels of optimisation (`-O0`) as the flags that they stand for.
    """
    kept: list[str] = []
    parts: dict[str, dict[str, Any]] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if level := re.fullmatch(r"(?:-O|--optimization[-_]level)=?([0-3])?", word):
            if level[1] is None and (not rest or not re.fullmatch("[0-3]", rest[0])):  # the older spelling of a compilation's object
                kept.append("--compilation-config")
                continue
            kept += LEVELS[int(level[1] or rest.pop(0))]
        elif part := re.fullmatch(r"(--?[A-Za-z][\w-]*)\.([\w.-]+)(?:=(.*))?", word, re.DOTALL):
            flag = JOINED.get(part[1].replace("_", "-"), part[1].replace("_", "-"))
            _put_at(parts.setdefault(flag, {}), part[2].split("."), part[3] if part[3] is not None else "".join(rest[:1]))
            rest = rest if part[3] is not None else rest[1:]
        elif (part := re.fullmatch(r"--spec[-_](method|model|tokens)(?:=(.*))?", word)) is not None:
            name = part[1].replace("tokens", "num_speculative_tokens")
            _put_at(parts.setdefault("--speculative-config", {}), [name], part[2] if part[2] is not None else "".join(rest[:1]))
            rest = rest if part[2] is not None else rest[1:]
        else:
            kept.append(word)
    return kept + [word for flag, said in parts.items() for word in (flag, json.dumps(said))]


def _put_at(tree: dict[str, Any], names: Sequence[str], text: str) -> None:
    for name in names[:-1]:
        tree = tree.setdefault(name, {})
    try:
        tree[names[-1]] = json.loads(text)
    except ValueError:
        tree[names[-1]] = text


def split_flags(engine: str, words: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """(flag, value) of a server's words, value None of a switch; a word that belongs to no flag comes as ("", word)."""
    known, rest = FLAGS.get(engine, {}), _joined(words) if engine == "vllm" else list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            yield "", word
            continue
        flag, equals, value = word.lstrip("-").partition("=")
        flag = flag if flag == "model_id" else flag.replace("_", "-")
        if flag.removeprefix("no-") in SWITCHES and flag not in known:
            said = value if equals else rest.pop(0) if rest and rest[0].lower() in ("true", "false") else "true"  # older versions took one
            yield (flag if said.lower() != "false" else f"no-{flag}"), None
        else:
            yield flag, rest.pop(0) if not equals and rest and not re.match(r"--|-[a-zA-Z]", rest[0]) else value


def read_flag(name: str, engine: str, flag: str, value: str | None, options: dict[str, Any]) -> str:
    """Put what a flag says into `options`; what of it is let be, and why, or nothing.

    UsageError, of the file `name`, for what is no value, and for a flag that would move the answer and is not simulated.
    """
    known = FLAGS.get(engine, {})
    if value is None:
        option, setting = SWITCHES.get(flag) or _negation(flag)
        _put(options, option, setting)
        return ""
    if flag in ("speculative-config", "sc"):
        _drafts(name, value, options)
    elif flag == "kv-transfer-config":
        _transfer(name, value, options)
    elif flag in ("kv-offloading-backend", "connector") and value.lower() == "lmcache":  # the latter of Dynamo
        _put(options, "lmcache", True)
        _put(options, "options", {"chunk_tokens": LMCACHE_CHUNK})
    elif flag == "limit-mm-per-prompt" and _no_images(value):
        _put(options, "options", {"language_model_only": True})
    elif flag in ("compilation-config", "cc"):
        return _compilation(name, value, options)
    elif flag in OVERRIDES and _of_positions(flag, value):
        options["positions"] = flag
    elif flag in known:
        option, read = known[flag]
        try:
            setting = read(value)
        except ValueError as error:
            said = str(error) if not str(error).startswith(("could not", "invalid literal")) else f"is no number: {value[:40]!r}"
            raise UsageError(f"{name}: --{flag} {said}") from None
        if setting is not None:
            _put(options, option, setting)
        elif option == "dtype" and flag != "dtype":
            options["quantization"] = value
        elif option == "engine_version":
            return f"--{flag} {value[:40]}"
    elif why := refusal(flag, value):
        raise NotSimulated(f"{name}: --{flag} {value[:40]}".rstrip() + f": {why}; without it in the file, the rest is answered")
    else:
        reason = known_without_effect(flag)
        if reason is None:
            raise NotSimulated(
                f"{name}: --{flag} is not known here: whether it moves the answer is not; without it in the file, the rest is answered"
            )
        return f"--{flag} ({reason})" if reason else ""
    return ""


def _no_images(text: str) -> bool:
    """Whether limits of a prompt's images and videos are all zero, with which vLLM leaves the towers out."""
    try:
        said = json.loads(text)
    except ValueError:
        return False
    return isinstance(said, dict) and {"image", "video"} <= said.keys() and not any(said.values())


def _of_positions(flag: str, text: str) -> bool:
    """Whether fields of the configuration that a flag changes say positions alone."""
    try:
        said = json.loads(text)
    except ValueError:
        return False
    return isinstance(said, dict) and bool(said) and (flag == "rope-scaling" or said.keys() <= POSITIONS)


def _negation(flag: str) -> tuple[str, Any]:
    """What the negation of a switch means, as vLLM has one of each: its `--no-enforce-eager`."""
    option, setting = SWITCHES[flag.removeprefix("no-")]
    return option, {key: not each for key, each in setting.items()} if isinstance(setting, dict) else not setting


def _put(options: dict[str, Any], option: str, setting: Any) -> None:
    options[option] = options.get(option, {}) | setting if isinstance(setting, dict) else setting


def _object(name: str, flag: str, text: str) -> dict[str, Any]:
    try:
        said = json.loads(text)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        raise UsageError(f"{name}: --{flag} needs a JSON object")
    return said


def _drafts(name: str, text: str, options: dict[str, Any]) -> None:
    """Drafts, whose synthetic acceptance may be written beside them."""
    try:
        said = _object(name, "speculative-config", text)
        drafts = {"draft_tokens": int(said["num_speculative_tokens"])}
        method = str(said.get("method") or ("draft_model" if said.get("model") else "ngram"))
        shares = ",".join(f"{float(share):g}" for share in said.get("synthetic_acceptance_rates") or ())
    except (ValueError, TypeError, KeyError):
        raise UsageError(f"{name}: --speculative-config needs num_speculative_tokens in a JSON object") from None
    drafter = DRAFTERS.get("mtp" if method.endswith("_mtp") else method)
    if drafter is None:
        raise NotSimulated(f"{name}: --speculative-config of method {method} is not simulated; methods that are: {', '.join(DRAFTERS)}")
    accepted = {"acceptance_per_position": shares} if shares else {}
    options["options"] = options.get("options", {}) | drafts | {"drafter": drafter} | accepted
    if method == "draft_model" and said.get("model"):
        options["draft_model"] = str(said["model"])


def _transfer(name: str, text: str, options: dict[str, Any]) -> None:
    """KV connectors: host memory of this server's own becomes `kv_offloading_size`; those between servers say nothing by themselves."""
    said = _object(name, "kv-transfer-config", text)
    connector, extra = str(said.get("kv_connector", "")), said.get("kv_connector_extra_config") or {}
    if not isinstance(extra, dict):
        raise UsageError(f"{name}: --kv-transfer-config: kv_connector_extra_config must be a JSON object")
    if connector == "MultiConnector":
        for each in extra.get("connectors") or ():
            _transfer(name, json.dumps(each), options)
    elif WITHIN.search(connector):
        _refuse_rules(name, extra)
        if connector == "OffloadingConnector" and (rules := _host_rules(name, extra)):
            _put(options, "options", rules)
        if gib := _host_memory(name, extra, "cpu_bytes_to_use", "cpu_bytes_to_use_per_rank") / 2**30:
            options["kv_offloading_size"] = gib
        if "LMCache" in connector:  # reads its size, which is a rank's, from a variable, too, or takes 5 GB
            options["lmcache"] = True
            if gib := _host_memory(name, extra, "lmcache.max_local_cpu_size", "max_local_cpu_size"):
                options["lmcache_gb"] = gib
            chunk = _whole(name, extra, "chunk_size", LMCACHE_CHUNK)
            _put(options, "options", {"chunk_tokens": _whole(name, extra, "lmcache.chunk_size", chunk)})
        elif not gib:
            raise UsageError(f"{name}: --kv-transfer-config: {connector} gives no cpu_bytes_to_use: how much host memory keeps KV?")
    elif not BETWEEN.search(connector):
        raise NotSimulated(
            f"{name}: --kv-transfer-config: connector {connector or 'of no name'} is not simulated; without it, the rest is answered"
        )


def _refuse_rules(name: str, extra: dict[str, Any]) -> None:
    """NotSimulated for rules of a host tier that keep or load other blocks than the least recently used ones of all prompts."""
    for key, usual in USUAL_RULES.items():
        if key in extra and extra[key] not in usual:
            raise NotSimulated(
                f"{name}: --kv-transfer-config: {key} {json.dumps(extra[key])[:40]} is not simulated; without it, the rest is answered"
            )


def _host_rules(name: str, extra: dict[str, Any]) -> dict[str, int]:
    """Engine options (sim.engine.host_tier) that a connector's settings stand for."""
    rules = {ours: _whole(name, extra, theirs, 0) for theirs, ours in HOST_RULES.items() if theirs in extra}
    if rules.get("store_threshold", 0) < 2:  # no offers are counted
        rules = {ours: rules[ours] for ours in ("chunk_tokens",) if ours in rules}
    return rules


def _whole(name: str, extra: dict[str, Any], key: str, otherwise: int) -> int:
    value = extra.get(key, otherwise)
    if not str(value).isdecimal():
        raise UsageError(f"{name}: --kv-transfer-config: {key} {json.dumps(value)[:40]} is no whole number")
    return int(value)


def _host_memory(name: str, extra: dict[str, Any], *keys: str) -> float:
    """Host memory for KV by the first of these settings that a connector has; 0 where it has none."""
    try:
        return next((float(extra[key]) for key in keys if extra.get(key)), 0.0)
    except (TypeError, ValueError):
        raise UsageError(f"{name}: --kv-transfer-config: bytes of host memory must be a number") from None


def _compilation(name: str, text: str, options: dict[str, Any]) -> str:
    """vLLM's compilation: no graphs at level or mode 0, decodes in pieces of them; other settings are close to what is measured."""
    said = {"level": int(text)} if text.isdecimal() else _object(name, "compilation-config", text)
    if said.get("cudagraph_mode") == "NONE" or said.get("level", said.get("mode", 3)) == 0 or said.get("use_cudagraph") is False:
        options["enforce_eager"] = True
        return ""
    if "cudagraph_mode" in said or "full_cuda_graph" in said:
        _put(options, "options", {"decode_pieces": said.get("cudagraph_mode") == "PIECEWISE" or said.get("full_cuda_graph") is False})
    usual = {"level": (3,), "mode": (3, "VLLM_COMPILE"), "cudagraph_mode": ("PIECEWISE", "FULL_AND_PIECEWISE")}
    if all(setting in usual.get(key, ()) for key, setting in said.items()):
        return ""
    return "--compilation-config (graphs are captured as by default)"
