"""4-bit weights computed in 16 bits reach most of older matrix units, and little of those that want kernels of their own."""

import pytest

from sim.errors import UsageError
from sim.rates.load import load_rates
from sim.specs.gpus import get_gpu, matrix_units_of
from sim.study.deployment import Deployment


@pytest.mark.parametrize(("gpu", "low", "high"), [("RTX-4090", 0.8, 1.0), ("A10", 0.8, 1.0), ("A100-40G", 0.54, 0.86), ("B200", 0.1, 0.3)])
def test_share_of_the_16_bit_rate(gpu, low, high):
    narrow, wide = (load_rates(Deployment.of("Qwen3-8B", gpu, dtype=dtype), draws=20).point for dtype in ("int4", "bf16"))
    assert low < narrow.linear_flops_per_s / wide.linear_flops_per_s < high


def test_other_units_are_refused_by_name(tmp_path):
    file = tmp_path / "gpu.yaml"
    rest = "memory_bytes: 24e9\nmemory_bandwidth: 1e12\nflops: {bf16: 1e14}\nhost_link_bandwidth: 3e10\n"
    file.write_text(f"name: X\n{rest}matrix_units: mma\n")
    with pytest.raises(UsageError, match="'matrix_units' must be one of sm80, wgmma, tcgen05, not 'mma'"):
        get_gpu(str(file))


def test_a_card_of_ones_own_has_the_units_of_its_chip(tmp_path):
    file = tmp_path / "gpu.yaml"
    rest = "memory_bytes: 180e9\nmemory_bandwidth: 7e12\nflops: {bf16: 2e15}\nhost_link_bandwidth: 6e10\n"
    file.write_text(f"name: X\n{rest}sibling_of: B200\n")
    assert [matrix_units_of(get_gpu(gpu)) for gpu in (str(file), "GB300", "H20", "A10")] == ["tcgen05", "tcgen05", "wgmma", ""]
