"""Every catalogued card is complete and self-consistent, and every price has its date and vendor."""

import re

import pytest

from sim.specs.gpus import FLOPS_DTYPES, get_gpu, list_gpus
from studies.reference_tables import table

DATACENTRE = ["H100", "H100-PCIe", "H200", "A100-40G", "A100-80G", "A10", "A10G", "A30", "A40", "L4", "L40S", "T4", "V100"]
NEWER = ["GB10", "B200", "GB200", "MI300X"]
WORKSTATION = ["RTX-3060", "RTX-3090", "RTX-4090", "RTX-5090", "RTX-PRO-6000"]
SPECS = [get_gpu(name) for name in list_gpus()]
by_card = pytest.mark.parametrize("gpu", SPECS, ids=list_gpus())


def test_all_wanted_cards_are_there():
    assert {*DATACENTRE, *NEWER, *WORKSTATION} <= set(list_gpus())
    assert len(SPECS) >= 20


@by_card
def test_sources_and_prices_are_stated(gpu):
    assert gpu.source
    assert gpu.origin == "catalogue"
    if gpu.price_per_hour is None:
        assert not gpu.price_date
    else:
        assert re.fullmatch(r"\d{4}-\d{2}", gpu.price_date)
        assert gpu.price_source


@by_card
def test_units_are_plausible(gpu):
    """A slip of a factor 1000 or a sparse figure for a dense one shows here."""
    assert 8e9 < gpu.memory_bytes < 3.1e11  # eight stacks of 36 GiB
    assert 2e11 < gpu.memory_bandwidth < 1e13
    assert set(gpu.flops) <= set(FLOPS_DTYPES)
    sixteen = gpu.flops.get("fp16") or gpu.flops["bf16"]  # TPUs have no fp16
    for narrow, wide in (("fp8", "fp16"), ("int8", "fp16"), ("fp4", "fp8")):
        if narrow in gpu.flops:
            assert 1.9 < gpu.flops[narrow] / (sixteen if wide == "fp16" else gpu.flops[wide]) < 4.1
    assert gpu.flops.get("bf16", sixteen) == sixteen
    assert 15e9 < gpu.host_link_bandwidth <= gpu.memory_bandwidth
    assert gpu.gpu_link_bandwidth is None or gpu.host_link_bandwidth <= gpu.gpu_link_bandwidth < gpu.memory_bandwidth


@by_card
def test_memory_is_what_the_driver_reports_or_the_datasheet_says(gpu):
    reported, printed = re.search(r"(\d+) MiB", gpu.note), re.search(r"as in the datasheet, (\d+) GB", gpu.note)
    if reported:
        assert gpu.memory_bytes == int(reported[1]) * 2**20
    elif printed:  # nobody has told us what the driver reports
        assert gpu.memory_bytes == int(printed[1]) * 1e9
    else:
        assert gpu.unified_memory  # there the driver reports nothing


@pytest.mark.parametrize("name", [name for name in list_gpus() if name.startswith("MI")])
def test_amd_counts_memory_in_gib(name):
    """rocm-smi reports 196,592 MiB of a "192 GB" card, 16 below 192 GiB: the others alike."""
    assert (get_gpu(name).memory_bytes / 2**20 + 16) % (16 * 1024) == 0


def test_recorded_campaign_price():
    """The price the published study was billed at."""
    price = next(row["value"] for row in table("tr164", "protocol_constants") if row["key"] == "h100_price")
    assert get_gpu("H100").price_per_hour == float(price)


def test_recorded_peaks():
    """The peaks that the published fractions refer to: 3.35 TB/s (brl07) and 273 GB/s (gdn)."""
    peaks = {float(row["peak_gb_per_s"]) for row in table("gdn", "recurrence_efficiency") if row["peak_gb_per_s"]}
    assert peaks == {get_gpu("GB10").memory_bandwidth / 1e9}
    assert get_gpu("H100").memory_bandwidth == 3.35e12
