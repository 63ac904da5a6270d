import pytest
import torch

from kernels import roofline

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("n", [1, 255, 256, 1000])
def test_read_touches_every_element(n: int) -> None:
    x = torch.randint(-(2**20), 2**20, (n,), dtype=torch.int32, device=DEVICE)
    out = torch.full((-(-n // 256),), -7, dtype=torch.int32, device=DEVICE)
    roofline.read_sum(x, out, block=256)
    expected = [int(part.sum()) for part in x.split(256)]
    assert out.tolist() == expected


@pytest.mark.parametrize("n", [1, 256, 1000])
def test_update_flips_every_element_and_nothing_else(n: int) -> None:
    x = torch.randint(0, 2**31 - 1, (n + 8,), dtype=torch.int32, device=DEVICE)
    before = x.clone()
    roofline.update_in_place(x[:n], block=256)
    assert torch.equal(x[:n], before[:n] ^ 1)
    assert torch.equal(x[n:], before[n:])


def test_without_a_gpu_an_error_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU is present")
    with pytest.raises(RuntimeError, match="CUDA"):
        roofline.measure()
