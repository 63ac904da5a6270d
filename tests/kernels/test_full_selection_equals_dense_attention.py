"""Dense and sparse whole steps over one cache: all blocks selected passes the gates, a budget that drops most of the cache does not."""

import numpy as np
import torch

from hw.gates import Agreement
from kernels.model_shape import Shape
from kernels.model_step import ModelStep
from tests.hw.logits import from_logits
from tests.kernels.caches import DEVICE

SHAPE = Shape(layers=1, hidden=32, heads_q=2, heads_kv=1, head_dim=16, ffn=32, vocab=70, rope_theta=1e4)


def agreement(k_blocks: int) -> Agreement:
    step = ModelStep(SHAPE, 2, 130, modes=("dense", "sparse"), k_blocks=k_blocks, block=16, headroom=16, dtype=torch.float32, device=DEVICE)
    logits = []
    for mode in ("dense", "sparse"):
        step.reset()
        step.run(mode)
        logits.append(step.logits.double().cpu().numpy() * 4.0)  # random weights give flat odds
    return from_logits(*logits, tokens=np.argmax(logits[0], axis=1))


def test_every_block_selected_is_the_dense_mode_and_few_are_not() -> None:
    assert agreement(8).failures() == []
    assert agreement(1).failures() != []
