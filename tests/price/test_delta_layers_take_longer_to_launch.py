"""A gated-DeltaNet layer takes a host longer to launch than attention: more outside graphs, and some where a graph holds the rest."""

from dataclasses import replace

from sim.cost.batch import mixed_batch
from sim.cost.mixer_work import DELTA_LAUNCHES, DELTA_PIECES
from sim.cost.work import iteration_work
from sim.specs.gpus import get_gpu
from sim.specs.model import Attention, DenseMlp, GatedDeltaNet, LayerGroup, ModelSpec
from sim.specs.precision import Precision

LAYERS = 6
PLAIN = ModelSpec("plain", 1024, 32_000, (LayerGroup(LAYERS, Attention(16, 4, 64), DenseMlp(4096)),), False, 8192)
HYBRID = replace(PLAIN, groups=(LayerGroup(LAYERS, GatedDeltaNet(4, 8, 64, 64), DenseMlp(4096)),))


def launched(model: ModelSpec, tokens: int) -> float:
    return iteration_work(model, mixed_batch(model, [], [(tokens, tokens, 1)]), Precision(), gpu=get_gpu("H100")).launch_layers


def test_more_is_launched_outside_graphs_and_in_pieces_of_them() -> None:
    assert launched(HYBRID, 700) - launched(PLAIN, 700) == LAYERS * DELTA_LAUNCHES
    assert launched(HYBRID, 300) - launched(PLAIN, 300) == LAYERS * DELTA_PIECES
