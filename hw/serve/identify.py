"""Identity of a running server: engine, version, limits, the KV cache it got. Every question goes to the server's own URL.

vLLM answers /version and tells its KV blocks in /metrics, SGLang /get_server_info, llama.cpp's server /props, TGI /info. What a server
does not tell is left out; one that is none of these is `unknown`.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from hw.serve.client import Target
from hw.serve.http_stream import StreamError, get_text

PATIENCE_S = 5.0


async def describe(target: Target) -> dict[str, Any]:
    """Facts for provenance: engine, and engine_version, max_model_len, max_num_seqs, kv_tokens, kv_blocks, block_size_tokens as reported.

    Never raises: a server that is down or mute is {"engine": "unknown"}, and says so itself once it is loaded.
    """
    paths = ("/version", "/get_server_info", "/props", "/info", "/v1/models")
    version, sglang, llama, tgi, models = await asyncio.gather(*(_json(target, path) for path in paths))
    facts = _limits(models, target.model)
    if "max_total_num_tokens" in sglang or "tp_size" in sglang:
        return facts | _named("sglang", sglang, version="version", kv_tokens="max_total_num_tokens", max_num_seqs="max_running_requests")
    if "build_info" in llama or "total_slots" in llama:
        slots = llama.get("total_slots")
        each = (llama.get("default_generation_settings") or {}).get("n_ctx")
        held = {"kv_tokens": slots * each} if isinstance(slots, int) and isinstance(each, int) else {}
        return facts | held | _named("llama.cpp", llama, version="build_info", max_num_seqs="total_slots")
    if "max_total_tokens" in tgi:
        return facts | _named("tgi", tgi, version="version", max_model_len="max_total_tokens", max_num_seqs="max_concurrent_requests")
    if "version" in version and facts.pop("owned_by", "") == "vllm":
        return facts | _named("vllm", version, version="version") | _cache_config(await _text(target, "/metrics"))
    facts.pop("owned_by", None)
    return facts | {"engine": "unknown"}


async def counters(target: Target) -> dict[str, float]:
    """`preemptions`, `prompt_tokens`, `hit_tokens` and what was drafted since the server started, and `kv_used`, the share of its blocks
    that requests hold now, as vLLM's metrics say; what is not said is left out.
    """
    text = await _text(target, "/metrics")
    names = {"preemptions": "num_preemptions", "prompt_tokens": "prompt_tokens", "draftings": "spec_decode_num_drafts"}
    names |= {"drafted_tokens": "spec_decode_num_draft_tokens", "accepted_tokens": "spec_decode_num_accepted_tokens"}
    names["hit_tokens"] = "prefix_cache_hits"
    every = {ours: f"{theirs}_total" for ours, theirs in names.items()} | {"kv_used": "kv_cache_usage_perc"}
    found = {ours: re.findall(rf"^vllm:{theirs}\{{[^}}]*\}} (\S+)$", text, re.MULTILINE) for ours, theirs in every.items()}
    return {name: sum(map(float, values)) for name, values in found.items() if values}


def _limits(models: dict[str, Any], name: str) -> dict[str, Any]:
    """`max_model_len` and `owned_by` of the model asked for, from the standard list of models."""
    listed = models.get("data")
    for model in listed if isinstance(listed, list) else []:
        if isinstance(model, dict) and model.get("id") == name:
            found = {"owned_by": str(model.get("owned_by", ""))}
            return found | ({"max_model_len": model["max_model_len"]} if isinstance(model.get("max_model_len"), int) else {})
    return {}


def _named(engine: str, said: dict[str, Any], *, version: str, **fields: str) -> dict[str, Any]:
    found = {ours: said[theirs] for ours, theirs in fields.items() if isinstance(said.get(theirs), int)}
    return {"engine": engine, **found} | ({"engine_version": str(said[version])} if said.get(version) else {})


def _cache_config(metrics: str) -> dict[str, int]:
    """KV blocks and their size from vLLM's metrics; of several engines behind one URL, the sum of the blocks."""
    rows = [dict(re.findall(r'(\w+)="([^"]*)"', line)) for line in metrics.splitlines() if line.startswith("vllm:cache_config_info{")]
    blocks = [int(r["num_gpu_blocks"]) for r in rows if r.get("num_gpu_blocks", "").isdigit()]
    sizes = {int(r["block_size"]) for r in rows if r.get("block_size", "").isdigit()}
    if not blocks or len(sizes) != 1:
        return {}
    size = sizes.pop()
    return {"kv_blocks": sum(blocks), "block_size_tokens": size, "kv_tokens": sum(blocks) * size}


async def _text(target: Target, path: str) -> str:
    try:
        return await asyncio.wait_for(get_text(f"{target.url}{path}", target.headers), PATIENCE_S)
    except (StreamError, OSError, TimeoutError):
        return ""


async def _json(target: Target, path: str) -> dict[str, Any]:
    try:
        said = json.loads(await _text(target, path) or "{}")
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
