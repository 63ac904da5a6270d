from dataclasses import replace

import pytest
import torch

from kernels import reference, reference_model
from kernels.model_shape import Shape
from kernels.model_step import ModelStep
from tests.kernels.caches import DEVICE

TINY = Shape(layers=2, hidden=48, heads_q=4, heads_kv=2, head_dim=16, ffn=40, vocab=70, qkv_bias=True, rope_theta=1e4)
ONE_LAYER = replace(TINY, layers=1)
BOUND = {torch.float32: 2e-4, torch.bfloat16: 6e-2}


def follow(step: ModelStep, mode: str, steps: int) -> None:
    """Run `steps` steps and compare the logits of each with the float64 step fed the same tokens."""
    caches = reference_model.history(step)
    tokens = list(range(step.batch))
    for _ in range(steps):
        want = reference_model.advance(step, caches, tokens)
        given = step.run(mode)
        assert reference.relative_error(step.logits, want) <= BOUND[step.dtype]
        assert given.tolist() == step.logits.argmax(-1).tolist()
        tokens = given.tolist()
    assert step.lens.tolist() == [step.context + steps] * step.batch


@pytest.mark.parametrize("batch", [1, 3])
def test_dense(batch: int) -> None:
    follow(ModelStep(TINY, batch, 37, block=16, headroom=16, dtype=torch.float32, device=DEVICE), "dense", 2)


def test_dense_in_bf16_with_head_norms_and_tied_embeddings() -> None:
    shape = Shape(layers=1, hidden=48, heads_q=2, heads_kv=1, head_dim=16, ffn=32, vocab=40, qk_norm=True, tied_embeddings=True)
    follow(ModelStep(shape, 2, 20, block=16, headroom=16, device=DEVICE), "dense", 2)


@pytest.mark.parametrize("mode", ["sparse", "tiered"])
def test_selecting_every_block_is_the_dense_step_also_across_block_ends(mode: str) -> None:
    """The budget covers all candidates; the steps start a block, so the ring of the tiers turns over."""
    step = ModelStep(ONE_LAYER, 1, 63, modes=(mode,), k_blocks=4, block=16, headroom=32, dtype=torch.float32, device=DEVICE)
    follow(step, mode, 3)
    assert int(step.lens[0]) // step.block > step.context // step.block


def test_tiered_and_sparse_agree_when_the_budget_binds() -> None:
    """The tiers hold other random values, so the sparse step is given the host's."""
    options = {"k_blocks": 2, "block": 16, "headroom": 32, "dtype": torch.float32, "device": DEVICE}
    tiered = ModelStep(ONE_LAYER, 1, 95, modes=("tiered",), **options)
    sparse = ModelStep(ONE_LAYER, 1, 95, modes=("sparse",), **options)
    for name in ("embedding", "head", "layers"):
        setattr(sparse, name, getattr(tiered, name))
    for i in range(ONE_LAYER.layers):
        for mine, theirs in zip(sparse.cache[i], tiered.host[i], strict=True):
            mine[sparse.table[0].long()] = theirs.to(DEVICE)
        sparse.summaries[i] = tiered.summaries[i].__class__(
            **{k: (v.clone() if isinstance(v, torch.Tensor) else v) for k, v in vars(tiered.summaries[i]).items()}
        )
    for _ in range(3):
        tiered.run("tiered")
        sparse.run("sparse")
        assert torch.equal(tiered.selected, sparse.selected)
        assert torch.equal(tiered.logits, sparse.logits)


def test_reset_returns_to_the_same_first_step() -> None:
    step = ModelStep(ONE_LAYER, 1, 30, block=16, headroom=16, dtype=torch.float32, device=DEVICE)
    step.run("dense")
    first = step.logits.clone()
    step.run("dense")
    step.reset()
    step.run("dense")
    assert torch.equal(step.logits, first)


@pytest.mark.parametrize(("change", "named"), [
    ({"modes": ("fast",)}, "modes"), ({"modes": ()}, "modes"), ({"modes": ("dense", "tiered")}, "modes"),
    ({"batch": 0}, "batch"), ({"context": -1}, "context"), ({"k_blocks": 0}, "k_blocks"),
])  # fmt: skip
def test_bad_arguments_are_named(change: dict, named: str) -> None:
    options = {"shape": TINY, "batch": 1, "context": 16, "device": DEVICE, **change}
    with pytest.raises(ValueError, match=named):
        ModelStep(**options)


def test_weights_of_the_seven_billion_shape_are_counted_from_its_sizes() -> None:
    shape = Shape(28, 3584, 28, 4, 128, 18944, 152064, qkv_bias=True)
    small = shape.layers * (shape.qkv_rows + 2 * shape.hidden) + shape.hidden
    assert shape.weights_read + shape.vocab * shape.hidden + small == 7_615_616_512
    assert shape.kv_per_token * 2 == 57_344
