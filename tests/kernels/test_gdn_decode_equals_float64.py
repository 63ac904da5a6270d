import pytest
import torch

from kernels import reference
from kernels.gdn_decode import ERROR_BOUND, STATE_ERROR_BOUND, gdn_decode
from tests.kernels.caches import DEVICE


def inputs(seed: int, batch: int, hk: int, hv: int, k: int, v: int, dtype: torch.dtype, per_channel: bool = False):
    gen = torch.Generator().manual_seed(seed)
    qkv = torch.randn(batch, 2 * hk * k + hv * v, generator=gen).to(dtype)
    decay = -torch.rand(*(batch, hv, k)[: 3 if per_channel else 2], generator=gen)
    beta = torch.rand(batch, hv, generator=gen)
    state = torch.randn(batch, hv, v, k, generator=gen)
    return [x.to(DEVICE) for x in (qkv, decay, beta, state)]


def split(qkv: torch.Tensor, hk: int, hv: int, k: int, v: int) -> list[torch.Tensor]:
    parts = qkv.split([hk * k, hk * k, hv * v], dim=1)
    return [x.reshape(qkv.shape[0], h, -1) for x, h in zip(parts, (hk, hk, hv), strict=True)]


@pytest.mark.parametrize("dtype", list(ERROR_BOUND))
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(("batch", "hk", "hv", "k", "v"), [(1, 1, 1, 16, 16), (3, 2, 6, 32, 16), (9, 2, 2, 16, 64)])
def test_one_step(dtype, per_channel, batch, hk, hv, k, v) -> None:
    qkv, decay, beta, state = inputs(batch, batch, hk, hv, k, v, dtype, per_channel)
    want, want_state = reference.gdn_decode(*split(qkv, hk, hv, k, v), decay, beta, state, k**-0.5, True)
    out = torch.full((batch, hv, v), float("nan"), dtype=dtype, device=DEVICE)
    gdn_decode(qkv, decay, beta, state, key_heads=hk, out=out, tile_v=16)
    assert reference.relative_error(out, want) <= ERROR_BOUND[dtype]
    assert reference.relative_error(state, want_state) <= STATE_ERROR_BOUND[torch.float32]


@pytest.mark.parametrize("per_channel", [False, True])
def test_raw_gates(per_channel: bool) -> None:
    qkv, decay, beta, state = inputs(1, 2, 1, 3, 16, 16, torch.float32, per_channel)
    gen = torch.Generator().manual_seed(2)
    a_log = torch.randn(3, generator=gen).to(DEVICE)
    dt_bias = torch.randn(*(3, 16)[: 2 if per_channel else 1], generator=gen).to(DEVICE)
    rate = torch.exp(a_log.double())[:, None] if per_channel else torch.exp(a_log.double())
    log_decay = -rate * torch.nn.functional.softplus(decay.double() * 8 + dt_bias.double())
    strength = torch.sigmoid(beta.double())
    want, want_state = reference.gdn_decode(*split(qkv, 1, 3, 16, 16), log_decay, strength, state, 0.25, True)
    out = gdn_decode(qkv, decay * 8, beta, state, key_heads=1, a_log=a_log, dt_bias=dt_bias)
    assert reference.relative_error(out, want) <= ERROR_BOUND[torch.float32]
    assert reference.relative_error(state, want_state) <= STATE_ERROR_BOUND[torch.float32]


def test_slots_name_states_and_a_negative_slot_is_padding() -> None:
    qkv, decay, beta, _ = inputs(3, 3, 1, 2, 16, 16, torch.float32)
    pool = torch.randn(5, 2, 16, 16, generator=torch.Generator().manual_seed(4)).to(DEVICE)
    before = pool.clone()
    slots = torch.tensor([4, -1, 1], dtype=torch.int32, device=DEVICE)
    out = gdn_decode(qkv, decay, beta, pool, key_heads=1, slots=slots, scale=1.0, l2norm=False)
    picked = before[slots.long().clamp(min=0)]
    want, want_state = reference.gdn_decode(*split(qkv, 1, 2, 16, 16), decay, beta, picked, 1.0, False)
    assert torch.equal(out[1], torch.zeros_like(out[1]))
    for b, slot in ((0, 4), (2, 1)):
        assert reference.relative_error(out[b], want[b]) <= ERROR_BOUND[torch.float32]
        assert reference.relative_error(pool[slot], want_state[b]) <= STATE_ERROR_BOUND[torch.float32]
    assert torch.equal(pool[[0, 2, 3]], before[[0, 2, 3]])


def test_states_more_than_two_to_the_31_elements_apart_are_addressed() -> None:
    if torch.cuda.is_available():
        pytest.skip("reserves address space, which only a CPU gives away for nothing")
    qkv, decay, beta, near = inputs(5, 2, 1, 2, 16, 16, torch.float32)
    apart = 2**31 + 512
    far = torch.empty(apart + near[0].numel()).as_strided((2, 2, 16, 16), (apart, 256, 16, 1))
    far.copy_(near)
    out = gdn_decode(qkv, decay, beta, far, key_heads=1, scale=1.0, l2norm=False)
    want, want_state = reference.gdn_decode(*split(qkv, 1, 2, 16, 16), decay, beta, near, 1.0, False)
    assert reference.relative_error(out, want) <= ERROR_BOUND[torch.float32]
    assert reference.relative_error(far, want_state) <= STATE_ERROR_BOUND[torch.float32]


def test_tilings_that_keep_the_order_of_the_sums_are_bit_identical() -> None:
    qkv, decay, beta, state = inputs(5, 2, 1, 2, 32, 64, torch.bfloat16)
    results = []
    for tile_v in (16, 32, 64):
        mine = state.clone()
        results.append((gdn_decode(qkv, decay, beta, mine, key_heads=1, tile_v=tile_v), mine))
    for out, new in results[1:]:
        assert torch.equal(out, results[0][0])
        assert torch.equal(new, results[0][1])


def test_a_bf16_state_must_be_asked_for_and_costs_accuracy_every_step() -> None:
    qkv, decay, beta, state = inputs(6, 1, 1, 2, 32, 16, torch.float32)
    half = state.to(torch.bfloat16)
    with pytest.raises(ValueError, match="state: dtype"):
        gdn_decode(qkv, decay, beta, half, key_heads=1)
    exact = half.double()
    for step in range(4):
        qkv = torch.randn(qkv.shape, generator=torch.Generator().manual_seed(step)).to(DEVICE)
        _, exact = reference.gdn_decode(*split(qkv, 1, 2, 32, 16), decay, beta, exact, 1.0, True)
        gdn_decode(qkv, decay, beta, half, key_heads=1, scale=1.0, allow_bf16_state=True)
    error = reference.relative_error(half, exact)
    assert STATE_ERROR_BOUND[torch.float32] < error <= STATE_ERROR_BOUND[torch.bfloat16] * 4
