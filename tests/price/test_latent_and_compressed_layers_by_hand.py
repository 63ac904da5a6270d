"""Work of layers whose keys are values: latents, and windows beside compressed entries, by hand."""

from dataclasses import replace

import pytest

from sim.cost.batch import decode_batch, mixed_batch
from sim.cost.coefficients import coefficients
from sim.cost.mixer_work import INDEX_KERNELS, INDEX_ROWS, LATENT_LAUNCHES, LATENT_PIECES, SPARSE_HEADS
from sim.cost.work import iteration_work
from sim.specs.gpus import get_gpu
from sim.specs.mixers import Attention, CompressedAttention, Indexer, LatentAttention
from sim.specs.model import DenseMlp, LayerGroup, ModelSpec
from sim.specs.precision import Precision

LAYERS, BYTES = 3, 2
PLAIN = ModelSpec("plain", 1024, 32_000, (LayerGroup(LAYERS, Attention(16, 4, 64), DenseMlp(4096)),), False, 8192)
LATENT = replace(PLAIN, groups=(LayerGroup(LAYERS, LatentAttention(16, None, 512, 128, 64, 128), DenseMlp(4096)),))
INDEX = Indexer(64, 128, 2048)
SPARSE = replace(LATENT, groups=(LayerGroup(LAYERS, LatentAttention(16, None, 512, 128, 64, 128, indexer=INDEX), DenseMlp(4096)),))
COMPRESSED = replace(PLAIN, groups=(LayerGroup(LAYERS, CompressedAttention(8, 64, 256, 2, 128, window=128, ratio=4), DenseMlp(4096)),))


def launched(model: ModelSpec, tokens: int) -> float:
    return iteration_work(model, mixed_batch(model, [], [(tokens, tokens, 1)]), Precision(), gpu=get_gpu("H100")).launch_layers


def test_latents_launch_more_outside_graphs_and_in_pieces_of_them() -> None:
    assert launched(LATENT, 700) - launched(PLAIN, 700) == LAYERS * LATENT_LAUNCHES
    assert launched(LATENT, 300) - launched(PLAIN, 300) == LAYERS * LATENT_PIECES


def test_a_summary_is_two_keys_of_the_latent() -> None:
    assert coefficients(LATENT, Precision()).summary_unit_bytes == LAYERS * 2 * (512 + 64) * BYTES


def test_a_compressed_entry_stands_for_its_tokens() -> None:
    found = coefficients(COMPRESSED, Precision())
    pairs = LAYERS * 4 * 8 * 64
    assert (found.window_pair_flops, found.pair_flops) == (pairs, pairs / 4)
    assert (found.window_token_bytes, found.kv_token_bytes) == (LAYERS * 64 * BYTES, LAYERS * 64 * BYTES / 4)
    assert (found.kept_window_token_bytes, found.kept_token_bytes) == (LAYERS * 64 * BYTES, LAYERS * 64 * BYTES / 4)


def test_an_indexer_adds_kernels_to_every_layer_and_one_for_so_many_rows() -> None:
    few, many = (iteration_work(SPARSE, decode_batch(SPARSE, n, 4096.0), Precision()).kernels for n in (1.0, 256.0))
    dense = iteration_work(LATENT, decode_batch(LATENT, 1.0, 4096.0), Precision()).kernels
    assert few - dense == pytest.approx(LAYERS * (INDEX_KERNELS + 1.0 / INDEX_ROWS))
    assert many - few == pytest.approx(LAYERS * 255.0 / INDEX_ROWS)


def test_a_layer_that_uses_another_ones_selection_launches_no_indexer() -> None:
    mixer = LatentAttention(16, None, 512, 128, 64, 128, indexer=replace(INDEX, shared=True))
    shared = replace(SPARSE, groups=(LayerGroup(LAYERS, mixer, DenseMlp(4096)),))
    found, dense = coefficients(shared, Precision()), coefficients(LATENT, Precision())
    assert (found.kernels, found.row_kernels) == (dense.kernels, 0.0)


def test_every_gpu_scores_all_keys_and_computes_64_heads_at_least() -> None:
    whole, split = (coefficients(SPARSE, Precision(), tp) for tp in (1, 2))
    assert split.pair_flops == whole.pair_flops == LAYERS * INDEX.flops_per_pair()
    assert split.window_pair_flops == whole.window_pair_flops == LAYERS * 2 * SPARSE_HEADS * (2 * 512 + 64)
