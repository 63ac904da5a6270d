"""Names of a layer's matrices as checkpoints spell them, and rules that say which modules a quantisation leaves out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import translate
from functools import cache

# The first component of a matrix's name (or of the path to an expert), and its last, by other spellings.
_MIXER = ("self_attn", "attention", "self_attention", "attn", "linear_attn", "mixer", "mamba", "conv", "temporal_block")
_MLP = ("mlp", "feed_forward", "block_sparse_moe", "ffn", "mixer", "moe")
_LEAVES = {
    "q_proj": ("qkv_proj", "query_key_value", "c_attn", "qkv", "in_proj_qkv", "wq"),
    "k_proj": ("qkv_proj", "query_key_value", "c_attn", "qkv", "in_proj_qkv", "wk"),
    "v_proj": ("qkv_proj", "query_key_value", "c_attn", "qkv", "in_proj_qkv", "wv"),
    "o_proj": ("out_proj", "dense", "c_proj", "wo"),
    "q_a_proj": ("fused_qkv_a_proj", "wq_a"),
    "q_b_proj": ("wq_b",),
    "kv_a_proj_with_mqa": ("fused_qkv_a_proj", "wkv_a"),
    "kv_b_proj": ("wkv_b",),
    "in_proj_qkv": ("in_proj_qkvz",),
    "in_proj_z": ("in_proj_qkvz",),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
    "gate_proj": ("gate_up_proj", "w1", "w13", "gate_up"),
    "up_proj": ("gate_up_proj", "w3", "w13", "fc1", "c_fc", "dense_h_to_4h"),
    "down_proj": ("w2", "fc2", "c_proj", "dense_4h_to_h"),
    "gate": ("router", "router.proj", "gate.wg"),
    "lm_head": ("output", "head", "embed_out", "language_model.lm_head"),
    "embed_tokens": ("embeddings", "wte", "embed", "word_embeddings", "language_model.embed_tokens"),
}
_LAYER = re.compile(r"^(?:.*?\.)?(?:layers|h|blocks)\.(.+)$")


@cache
def spellings(name: str) -> tuple[str, ...]:
    """A matrix's canonical name inside its layer and what other checkpoints call it."""
    *path, leaf = name.split(".")
    leaves = (leaf, *_LEAVES.get(leaf, ()))
    if not path:
        return leaves
    first = _MLP if path[0] == "mlp" else _MIXER if path[0] in ("self_attn", "linear_attn", "mamba", "conv") else (path[0],)
    infixes = [path[1:]]
    if path[1:2] == ["experts"]:
        infixes = [["experts", "0"], ["experts"]]
    elif path[1:2] == ["shared_experts"]:
        infixes = [["shared_experts"], ["shared_expert"], ["shared_mlp"]]
    return tuple(".".join([head, *infix, end]) for head in first for infix in infixes for end in leaves)


class ModuleRules:
    """Matrices that a list of module names covers: exact paths and everything below them, globs, regular expressions (`re:`), or single
    components (`lm_head`, `gate`). A path that names no layer holds for all.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        paths: dict[str | None, set[str]] = {}
        globs: list[str] = []
        self._regexes: list[re.Pattern[str]] = []
        for pattern in patterns:
            if pattern.startswith("re:"):
                self._regexes.append(re.compile(pattern[3:]))
                continue
            found = _LAYER.match(pattern)
            rest = found.group(1) if found else pattern
            if any(mark in rest for mark in "*?["):
                globs.append(rest)
            elif found:
                layer, _, below = rest.partition(".")
                paths.setdefault(layer, set()).add(below)
            else:
                paths.setdefault(None, set()).add(pattern)
        self._paths = paths
        self._anywhere: dict[str, bool] = {}  # by name, whatever the layer: a model has few names and many layers
        below = [translate(form) for glob in globs for form in (glob, f"{glob}.*")]
        self._globs = re.compile("|".join(below)) if globs else None

    def covers(self, name: str, layer: int | None = None) -> bool:
        """Whether the rules cover the matrix of this canonical name, of this layer (None for tables outside the layers)."""
        return any(self._covers(spelt, layer) for spelt in spellings(name))

    def _covers(self, name: str, layer: int | None) -> bool:
        if name not in self._anywhere:
            self._anywhere[name] = any(f".{rest}." in f".{name}." for rest in self._paths.get(None, ()))
        if self._anywhere[name]:
            return True
        where = name if layer is None else f"{layer}.{name}"
        if layer is not None:
            mine = self._paths.get(str(layer), ())
            if mine and ("" in mine or any(below in mine for below in _heads(name))):
                return True
        if self._globs and (self._globs.match(where) or self._globs.match(name)):
            return True
        full = name if layer is None else f"model.layers.{where}"
        return any(regex.match(full) for regex in self._regexes)


def _heads(name: str) -> list[str]:
    """The path and each path above it: `a.b.c`, `a.b`, `a`."""
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]


class ModuleMap:
    """A value for each module that a mapping names, exactly or by a path above it: `quantized_layers` of mixed precisions."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._by_layer: dict[str | None, dict[str, str]] = {}
        for path, value in values.items():
            found = _LAYER.match(path)
            layer, _, below = found.group(1).partition(".") if found else (None, "", path)
            self._by_layer.setdefault(layer, {})[below] = value

    def get(self, name: str, layer: int | None = None) -> str | None:
        mine = self._by_layer.get(None if layer is None else str(layer), {})
        if not mine:
            return None
        return next((mine[below] for spelt in spellings(name) for below in _heads(spelt) if below in mine), None)
