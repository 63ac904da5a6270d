"""Bytes of a model's weights as they are stored: the sum over its matrices of what a quantisation makes of each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from sim.specs import gguf
from sim.specs.blocks import Matrix, elements
from sim.specs.checkpoint import Checkpoint, GroupBytes
from sim.specs.model import LayerGroup, ModelSpec
from sim.specs.precision import ACTIVATION_BYTES, Precision
from sim.specs.quantisation import EMBEDDING, HEAD, Quantisation
from sim.specs.storage import PLAIN, Storage

StorageOf = Callable[[Matrix, int | None], Storage]


def with_checkpoint(model: ModelSpec, quantisation: Quantisation | None) -> ModelSpec:
    """The model with what its quantisation says of its weights; as it was for one without, or one that quantises nothing."""
    if quantisation is None:
        return model
    found = checkpoint(model, quantisation.storage, quantisation.kv_dtype, ACTIVATION_BYTES, quantisation.method)
    notes = model.notes + tuple(f"quantization_config: {note}." for note in quantisation.notes)
    return replace(model, checkpoint=found, notes=notes)


def checkpoint(model: ModelSpec, storage_of: StorageOf, kv_dtype: str | None, vector_bytes: float, method: str) -> Checkpoint | None:
    """Bytes by group and table when every matrix is stored as `storage_of` says and all else in `vector_bytes`. None when no matrix is
    narrower than 16 bits.
    """
    hidden = model.hidden
    by_dtype: dict[str, float] = defaultdict(float)
    quantised: dict[str, int] = defaultdict(int)
    kernels: dict[str, int] = defaultdict(int)

    def stored(matrix: Matrix, layer: int | None, copies: int = 1) -> float:
        kind = storage_of(matrix, layer)
        size = kind.bytes_of(matrix)
        by_dtype[kind.dtype] += copies * size
        quantised[kind.dtype] += copies * matrix.elements
        return size

    groups = []
    for group, indices in zip(model.groups, _indices(model), strict=True):
        layer_bytes = expert_bytes = replicated = 0.0
        experts = group.mlp.expert_matrices(hidden) if group.mlp.kind == "moe" else ()
        copies = group.mlp.experts if group.mlp.kind == "moe" else 0
        for index in indices:
            for matrix in group.matrices(hidden):
                size = stored(matrix, index)
                layer_bytes += size
                replicated += size * matrix.replicated
                kernels[storage_of(matrix, index).kernel] += matrix.elements
            expert_bytes += sum(stored(matrix, index, copies) for matrix in experts)
        vectors = group.always_params(hidden) - elements(group.matrices(hidden))
        expert_vectors = group.mlp.expert_params(hidden) - elements(experts) if group.mlp.kind == "moe" else 0
        layer_bytes, expert_bytes, replicated = (each / group.count for each in (layer_bytes, expert_bytes, replicated))
        groups.append(GroupBytes(layer_bytes + vectors * vector_bytes, expert_bytes + expert_vectors * vector_bytes, replicated))
    embedding = stored(Matrix(EMBEDDING, model.vocab, hidden), None)
    head = 0.0 if model.tied_embeddings else stored(Matrix(HEAD, model.vocab, hidden), None)
    other = model.outer_params * vector_bytes + model.extra_params * ACTIVATION_BYTES
    narrow = {dtype: size for dtype, size in by_dtype.items() if dtype not in (PLAIN.dtype, "fp32")}
    if not narrow:
        return None
    main = max(narrow, key=lambda dtype: quantised[dtype])
    body = sum(g.count * (b.layer + b.expert * getattr(g.mlp, "experts", 0)) for g, b in zip(model.groups, groups, strict=True))
    total = body + embedding + head + other
    share = quantised[main] / model.params
    kernel = max(kernels, key=kernels.__getitem__, default=main)
    if (method, kernel) == ("awq", "int4"):  # with zero points, for which engines chose other kernels (sim.specs.linear_kernels)
        kernel = "awq"
    others = [f"{quantised[d] / model.params:.0%} {d}" for d in narrow if d != main]
    said = f"{method}: {', '.join([f'{share:.0%} of the parameters {main}', *others, 'the rest 16 bits'])}, {total / 1e9:.4g} GB"
    return Checkpoint(main, kv_dtype, tuple(groups), embedding, head, other, total, said, kernel)


def _indices(model: ModelSpec) -> list[tuple[int, ...]]:
    """The layers of each group: as read, or else in the groups' order."""
    if all(len(group.indices) == group.count for group in model.groups):
        return [group.indices for group in model.groups]
    found, first = [], 0
    for group in model.groups:
        found.append(tuple(range(first, first + group.count)))
        first += group.count
    return found


def storage_format(model: ModelSpec, precision: Precision) -> str:
    """Storage format of most of the weights that every token reads, as kernels tell them apart (sim.specs.linear_kernels)."""
    found = stored(model, precision.weights)
    return (found.kernel if found else "") or precision.weights


@lru_cache(maxsize=256)
def stored(model: ModelSpec, weights: str) -> Checkpoint | None:
    """Storage of the weights when the model is served in dtype `weights`: its own checkpoint where that is one of them, a GGUF file
    of that type, None where every weight takes the same bytes.
    """
    if model.checkpoint is not None and model.checkpoint.dtype == weights:
        return model.checkpoint
    return gguf_checkpoint(model, weights) if weights in gguf.GGUF else None


def gguf_checkpoint(model: ModelSpec, weights: str) -> Checkpoint | None:
    """Storage of the weights in a GGUF file of type `weights`."""
    grouped = any(g.mixer.kind == "attention" and g.mixer.heads >= 4 * g.mixer.kv_heads for g in model.groups)
    layers = model.layers

    def storage_of(matrix: Matrix, layer: int | None) -> Storage:
        return gguf.storage(weights, matrix, layer, layers, grouped, model.tied_embeddings)

    return checkpoint(model, storage_of, None, gguf.NORM_BYTES, "GGUF")


def group_bytes(model: ModelSpec, precision: Precision) -> list[GroupBytes]:
    """Bytes of one layer of each group at a precision: what every token reads, and one routed expert."""
    found = stored(model, precision.weights)
    if found is not None:
        return list(found.groups)
    return [_uniform(group, model, precision.weight_bytes) for group in model.groups]


def _uniform(group: LayerGroup, model: ModelSpec, weight: float) -> GroupBytes:
    expert = group.mlp.expert_bytes(model.hidden, weight, model.expert_bits) if group.mlp.kind == "moe" else 0.0
    replicated = elements(matrix for matrix in group.matrices(model.hidden) if matrix.replicated)
    return GroupBytes(group.always_params(model.hidden) * weight, expert, replicated * weight)


def head_bytes(model: ModelSpec, precision: Precision) -> float:
    """Bytes of the output projection. Dtypes narrower than 16 bits leave it in 16, unless the checkpoint says otherwise."""
    found = stored(model, precision.weights)
    if found is not None:
        return found.embedding if model.tied_embeddings else found.head
    return model.lm_head_params * max(precision.weight_bytes, ACTIVATION_BYTES)
