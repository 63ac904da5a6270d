"""Placed contexts hold noise: of the standard deviation of what a prompt wrote, keys and values apart, in every layout of a pool."""

import pytest

torch = pytest.importorskip("torch")

from hw.engines.kv_noise import fill_like_written, keys_and_values  # noqa: E402

BLOCKS, BLOCK, HEADS, DIM = 300, 16, 2, 8


def pool(layout: str, sd: tuple[float, float]) -> torch.Tensor:
    """A pool in which blocks 1..20 were written with normal keys and values of the given sizes."""
    generator = torch.Generator().manual_seed(0)
    halves = []
    for size in sd:
        half = torch.zeros(BLOCKS, BLOCK, HEADS, DIM)
        half[1:21] = size * torch.randn(20, BLOCK, HEADS, DIM, generator=generator)
        halves.append(half)
    return torch.stack(halves, dim=0 if layout == "pair first" else 1).to(torch.bfloat16)


@pytest.mark.parametrize("layout", ["pair first", "blocks first"])
def test_keys_and_values_keep_their_own_size(layout: str) -> None:
    cache = pool(layout, (1.5, 2e-5))
    parts = keys_and_values(cache, BLOCKS)
    assert [fill_like_written(part, BLOCKS) for part in parts] == pytest.approx([1.5, 2e-5], rel=0.03)
    for part, size in zip(keys_and_values(cache, BLOCKS), (1.5, 2e-5), strict=True):
        assert float(part.float().std()) == pytest.approx(size, rel=0.03)
        assert (part[:, 0].float().std(dim=(-1, -2)) > 0).all()  # every block, also those that no prompt reached


def test_a_pool_never_written_gets_unit_noise_and_a_latent_one_is_whole() -> None:
    latent = torch.zeros(BLOCKS, BLOCK, 24, dtype=torch.bfloat16)
    (part,) = keys_and_values(latent, BLOCKS)
    assert fill_like_written(part, BLOCKS) == 1.0
    assert float(latent.float().std()) == pytest.approx(1.0, rel=0.03)


def test_what_is_no_paged_pool_is_left_alone_or_taken_whole() -> None:
    assert keys_and_values([torch.zeros(3)], BLOCKS) == []
    assert keys_and_values(torch.zeros(BLOCKS, 4, dtype=torch.int32), BLOCKS) == []
    assert keys_and_values(torch.zeros(BLOCKS, 4, dtype=torch.float8_e4m3fn), BLOCKS) == []
    state = torch.zeros(7, 5, 24)
    assert len(keys_and_values(state, BLOCKS)) == 1
    assert fill_like_written(state, BLOCKS) == 1.0
