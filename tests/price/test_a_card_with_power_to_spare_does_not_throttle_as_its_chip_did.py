"""A consumer's card whose matrix units run at half rate has power to spare: it is not as slow over many rows as the chip's card was."""

import numpy as np
import pytest

from sim.cost.gemm_surface import packaged, surface_of, unthrottled
from sim.rates.posterior import UNTHROTTLED, rates_for
from sim.specs.gpus import get_gpu, spare_power


@pytest.mark.parametrize(("gpu", "spare"), [("RTX-4090", 450 / 165.2 / (350 / 362.05)), ("H200", 1.0), ("H100-PCIe", 1.0), ("GH200", 1.0)])
def test_power_to_spare_is_that_per_flop(gpu, spare):
    assert spare_power(get_gpu(gpu)) == pytest.approx(spare)


def test_a_gemm_does_not_slow_down_with_rows_beyond_those_where_flops_bind():
    here, there = surface_of(get_gpu("RTX-4090"), "bf16"), packaged()["L40S", "bf16"]
    few, many = there.rows <= 256, there.rows >= 512
    assert np.array_equal(here.log_over[:, few], there.log_over[:, few])
    assert (here.log_over[:, many] <= there.log_over[:, many]).all()
    assert (np.diff(here.log_over[:, many], axis=1) <= 1e-9).all()
    assert (there.log_over[:, -1] > here.log_over[:, -1] + 0.1).any()


def test_with_no_power_to_spare_nothing_changes():
    there = packaged()["L40S", "bf16"]
    assert unthrottled(there, 1.0) is there


def test_its_gemms_reach_the_share_of_cards_that_do_not_throttle():
    for name, share in (("RTX-4090", UNTHROTTLED), ("L40S", 0.73)):
        card = get_gpu(name)
        assert rates_for(card).point.linear_flops_per_s / card.flops["bf16"] == pytest.approx(share, abs=0.01)
