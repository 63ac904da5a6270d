"""A model's shape and what it costs to hold, as `simctl models` prints it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sim.deployment.memory import resident_weight_bytes
from sim.specs.model import LayerGroup, Mixer, Mlp, ModelSpec
from sim.specs.precision import ACTIVATION_BYTES, STATE_BYTES, Precision
from sim.units import format_bytes, format_tokens
from simctl.text.layout import aligned, wrapped

WEIGHT_DTYPES = ("bf16", "fp8", "int4", "mxfp4", "nvfp4")
_LAYER_WORDS = {"attention": "full", "mla": "MLA", "compressed": "compressed", "gdn": "GDN", "none": "MLP"}
_COLUMNS = ("model", "params", "active", "layers", "KV B/token", "context")


def catalogue(specs: list[ModelSpec]) -> list[str]:
    """A line a model."""
    return aligned(_COLUMNS, [_row(spec) for spec in specs])


def describe(spec: ModelSpec) -> dict[str, Any]:
    """Shape and derived counts as plain data; bytes for bf16 KV unless the key says otherwise."""
    return {
        "name": spec.name,
        "source": spec.source,
        "hidden_size": spec.hidden,
        "vocab_size": spec.vocab,
        "tied_embeddings": spec.tied_embeddings,
        "max_context_tokens": spec.max_context,
        "layers": spec.layers,
        "layer_groups": [_group(group, spec.hidden) for group in spec.groups],
        "params": spec.params,
        "active_params": spec.active_params,
        "routed_expert_params": spec.expert_params,
        "params_not_read_by_text_decode": spec.extra_params + (0 if spec.tied_embeddings else spec.embedding_params),
        "expert_bits": spec.expert_bits,
        "kv_bytes_per_token": {"bf16": 2 * spec.kv_elements_per_token, "fp8": spec.kv_elements_per_token},
        "window_tokens": spec.window,
        "window_kv_bytes_per_token": {"bf16": 2 * spec.window_kv_elements_per_token, "fp8": spec.window_kv_elements_per_token},
        "state_bytes_per_sequence": int(STATE_BYTES * spec.state_elements),
        "conv_state_bytes_per_sequence": int(ACTIVATION_BYTES * spec.conv_elements),
        "checkpoint": _checkpoint(spec),
        "notes": list(spec.notes),
        "index_bytes_per_token": spec.index_bytes_per_token,
        "weight_bytes": {dtype: resident_weight_bytes(spec, Precision(dtype)) for dtype in WEIGHT_DTYPES},
    }


def _checkpoint(spec: ModelSpec) -> dict[str, Any] | None:
    """The dtypes that the published weights are served in unless asked otherwise, and their bytes; None where they have 16 bits."""
    found = spec.checkpoint
    if found is None:
        return None
    return {"dtype": found.dtype, "kv_dtype": found.kv_dtype, "weight_bytes": round(found.total), "read": found.said}


def _group(group: LayerGroup, hidden: int) -> dict[str, Any]:
    layer = {"count": group.count, "params_per_layer": group.layer_params(hidden)}
    return layer | {"mixer": asdict(group.mixer), "mlp": asdict(group.mlp)}


def _row(spec: ModelSpec) -> tuple[str, ...]:
    return (
        spec.name,
        _count(spec.params),
        _count(spec.active_params),
        _layers(spec),
        f"{2 * spec.kv_elements_per_token:,}",
        format_tokens(spec.max_context),
    )


def _layers(spec: ModelSpec) -> str:
    """`10 full + 30 GDN`, summed over groups that differ only in their MLP."""
    totals: dict[str, int] = {}
    for group in spec.groups:
        word = _word(group.mixer)
        totals[word] = totals.get(word, 0) + group.count
    return " + ".join(f"{totals[word]} {word}" for word in sorted(totals, key=lambda word: word not in ("full", "MLA")))


def _word(mixer: Mixer) -> str:
    if mixer.kind == "recurrent":
        return mixer.name
    if mixer.kind == "attention" and mixer.window:
        return f"w{mixer.window}"
    return _LAYER_WORDS[mixer.kind]


def _count(params: float) -> str:
    """Three digits and a suffix: `7.62B`, `14.8B`, `494M`."""
    scale, suffix = next((scale, suffix) for scale, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1, "")) if params >= 0.9995 * scale)
    value = params / scale
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}{suffix}"


def model_lines(spec: ModelSpec) -> list[str]:
    """Layers, parameters, bytes per token and resident weights of one model."""
    data = describe(spec)
    tables = "one table for input and output" if spec.tied_embeddings else "separate output table"
    lines = [spec.name, *wrapped(f"source: {spec.source}", "  ", "  ")]
    lines += [f"  hidden {spec.hidden}, vocabulary {spec.vocab} ({tables})"]
    lines += [f"  context declared: {format_tokens(spec.max_context)} tokens", "", "Layers"]
    for group in spec.groups:
        lines += [f"  {group.count} x {_mixer_text(group)};", f"      {_mlp_text(group)}"]
    lines += ["", "Parameters (computed from the shape)"]
    counts = [("all", spec.params), ("active per token", spec.active_params), ("routed experts", spec.expert_params)]
    counts += [("not read by a text decode step", data["params_not_read_by_text_decode"])]
    lines += [f"  {what:<32}{count:>19,}" for what, count in counts if count]
    lines += ["", "Per token of context (bf16 / fp8)"]
    lines += [f"  {spec.kv_layers} full-context layers: {_both(spec.kv_elements_per_token)}"]
    if spec.window_layers:
        lines += [f"  {spec.window_layers} layers, last {spec.window} tokens only: {_both(spec.window_kv_elements_per_token)}"]
    if spec.state_layers:
        state, conv = data["state_bytes_per_sequence"], data["conv_state_bytes_per_sequence"]
        lines += ["Per sequence, whatever its context"]
        lines += [f"  {spec.state_layers} recurrent layers: state {format_bytes(state)} (fp32), convolution {format_bytes(conv)}"]
    if spec.index_bytes_per_token:
        lines += [f"  keys of the indexers: {spec.index_bytes_per_token:,.0f} bytes, 8 bits in either"]
    if spec.checkpoint:
        lines += ["", *wrapped(f"Published weights, served so unless --dtype says otherwise: {spec.checkpoint.said}", "", "  ")]
        lines += [f"  and a KV cache of {spec.checkpoint.kv_dtype}"] if spec.checkpoint.kv_dtype else []
    lines += [line for note in spec.notes for line in wrapped(f"note: {note}", "", "  ")]
    lines += ["", "Resident weights" + (f" (experts fixed at {spec.expert_bits:g} bits by the checkpoint)" if spec.expert_bits else "")]
    return [*lines, *(f"  {dtype:<8}{format_bytes(size):>9}" for dtype, size in data["weight_bytes"].items())]


def _both(elements: float) -> str:
    return f"{2 * elements:,} / {elements:,} bytes"


def _mixer_text(group: LayerGroup) -> str:
    mixer = group.mixer
    if mixer.kind == "gdn":
        return f"gated DeltaNet, {mixer.key_heads} key and {mixer.value_heads} value heads, state {mixer.key_dim} x {mixer.value_dim}"
    if mixer.kind == "none":
        return "no mixer"
    if mixer.kind == "compressed":
        rest = f", beyond it one entry a {mixer.ratio} tokens" if mixer.ratio else ""
        return f"compressed attention, {mixer.heads} heads, window {mixer.window}{rest}"
    if mixer.kind == "recurrent":
        return f"{mixer.name}, {mixer.heads} heads, state {mixer.state:,}"
    if mixer.kind == "mla":
        chosen = f", {mixer.indexer.top_k} tokens selected" if mixer.indexer else ""
        return f"latent attention, {mixer.heads} heads, cache {mixer.kv_rank} + {mixer.rope_dim}{chosen}"
    scope = f"window {mixer.window}" if mixer.window else "full"
    return f"attention ({scope}), {mixer.heads} heads, {mixer.kv_heads} KV heads of {mixer.head_dim}"


def _mlp_text(group: LayerGroup) -> str:
    mlp: Mlp = group.mlp
    if mlp.kind == "none":
        return "no MLP"
    if mlp.kind == "dense":
        return f"MLP {mlp.intermediate}"
    shared = f" + shared {mlp.shared_intermediate}" if mlp.shared_intermediate else ""
    return f"{mlp.top_k} of {mlp.experts} experts of {mlp.intermediate}{shared}"
