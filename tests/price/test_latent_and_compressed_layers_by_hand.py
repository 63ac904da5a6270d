"""Work of layers whose keys are values: latents, and windows beside compressed entries, by hand."""

from dataclasses import replace

from sim.cost.batch import mixed_batch
from sim.cost.work import LATENT_LAUNCHES, LATENT_PIECES, coefficients, iteration_work
from sim.specs.gpus import get_gpu
from sim.specs.mixers import Attention, CompressedAttention, LatentAttention
from sim.specs.model import DenseMlp, LayerGroup, ModelSpec
from sim.specs.precision import Precision

LAYERS, BYTES = 3, 2
PLAIN = ModelSpec("plain", 1024, 32_000, (LayerGroup(LAYERS, Attention(16, 4, 64), DenseMlp(4096)),), False, 8192)
LATENT = replace(PLAIN, groups=(LayerGroup(LAYERS, LatentAttention(16, None, 512, 128, 64, 128), DenseMlp(4096)),))
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
