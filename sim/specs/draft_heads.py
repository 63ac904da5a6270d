"""Heads that draft from a model's own hidden states (EAGLE, multi-token prediction): one layer of its shape and an output projection."""

from __future__ import annotations

from dataclasses import replace

from sim.specs.model import ModelSpec

EAGLE3_VOCAB = 32_000  # draft vocabulary of published EAGLE-3 heads
# vLLM's methods, and the words that they draft from: none is all of the model's. mtp is the model's own head.
HEADS = {"eagle": None, "eagle3": EAGLE3_VOCAB, "mtp": None}

READS_KV = "gemma4"  # whose assistant reads the model's own KV in all its layers (vLLM 0.32: gemma4_mtp)


def draft_head(model: ModelSpec, method: str) -> ModelSpec:
    """A head of `method` (one of HEADS) for the model: its last layer that attends, once, and its tables, which are shared or small; a
    tower for images is the model's alone.
    """
    group = next((g for g in reversed(model.groups) if g.mixer.kind in ("attention", "mla")), model.groups[-1])
    if method == "mtp" and model.model_type.startswith(READS_KV) and group.mixer.kind == "attention":
        group = replace(group, mixer=replace(group.mixer, kv_kept=False))
    vocab = min(HEADS[method] or model.vocab, model.vocab)
    return replace(
        model,
        name=f"{method} head",
        groups=(replace(group, count=1, indices=()),),
        vocab=vocab,
        tied_embeddings=True,
        checkpoint=None,
        extra_params=0,
        tower_params=0,
        image_bytes=(0.0, 0.0),
    )
