"""Every number of README's A10 answer follows from the lines of docs/what-if.md: bytes over bandwidths, launches, a price."""

import re

import pytest

from sim.specs.gpus import get_gpu
from tests.docs.pages import refresh

README = (refresh.ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (refresh.ROOT / "docs/what-if.md").read_text(encoding="utf-8")
ANSWER = " ".join(next(m["output"] for m in refresh.BLOCK.finditer(README) if "--gpu A10" in m["command"]).split())
EXPLAINED = " ".join(next(m["output"] for m in refresh.BLOCK.finditer(PAGE) if "--gpu A10" in m["command"]).split())
CONTEXT, TOKEN = 2**20, 57_344  # tokens, bytes of one


def shown(pattern, text=ANSWER):
    return [float(value) for value in re.search(pattern, text).groups()]


def of_page(pattern):
    return float(re.search(pattern, PAGE)[1].replace(",", ""))


@pytest.fixture(scope="module")
def by_hand():
    """Seconds by term, from the page's bytes and launches and from the medians that its command prints."""
    number = r"([\d.]+)"
    weights, kv, link = shown(f"weights at {number} GB/s, KV at {number} GB/s, host link at {number} GB/s", EXPLAINED)
    step, kernel, c1, block, gather = shown(
        rf"{number} us a step, {number} us a kernel; selection {number} us a layer and {number} us a block of it; "
        rf"gather from host RAM {number} us a layer",
        EXPLAINED,
    )
    growth = of_page(r"each c1 \+ 32 blocks x ([\d.]+)")
    read = (of_page(r"x 2 bytes = ([\d.]+) GB") + of_page(r"activations \| ([\d.]+) MB") / 1e3) / weights
    launches = of_page(r"x 28 \+ 2 = (\d+) launches") * kernel / 1e6 + step / 1e6
    return {
        "dense": read + launches,
        "link": link,
        "kv": kv,
        "blocks": read
        + launches
        + (of_page(r"x 57,344 = ([\d.]+) MB \| KV") + of_page(r"x 260 bytes = ([\d.]+) MB")) / 1e3 / kv
        + 28 * (c1 + 32 * block * growth + gather) / 1e6
        + of_page(r"x 57,344 = ([\d.]+) MB \| link") / 1e3 / link,
    }


def test_selected_blocks_from_host_ram(by_hand):
    assert shown(r"top 32 blocks of 128 RAM ([\d.]+) ms ([\d.]+)") == pytest.approx(
        [1e3 * by_hand["blocks"], 1 / by_hand["blocks"]], rel=0.005
    )


def test_dense_over_the_link_and_the_gain(by_hand):
    seconds = of_page(r"x 57,344 = ([\d.]+) GB over the link") / by_hand["link"]
    assert shown(r"dense RAM ([\d.]+) s ([\d.]+)") == pytest.approx([seconds, 1 / seconds], rel=0.005)
    assert shown(r"([\d.]+)x \[[\d.-]+\] of dense") == pytest.approx([seconds / by_hand["blocks"]], rel=0.01)


def test_ends_of_the_context(by_hand):
    seconds = by_hand["dense"] + of_page(r"4,224 tokens x 57,344 = ([\d.]+) MB") / 1e3 / by_hand["kv"]
    assert shown(r"first 128 \+ last 4096 HBM ([\d.]+) ms ([\d.]+)") == pytest.approx([1e3 * seconds, 1 / seconds], rel=0.005)


def test_memory_and_price(by_hand):
    allowed, weights, activations, free, fit = shown(
        r"Of ([\d.]+) GB per GPU ([\d.]+) GB weights and ([\d.]+) GB activations leave ([\d.]+) GB for KV: ([\d.]+)"
    )
    assert allowed == pytest.approx(0.92 * get_gpu("A10").memory_bytes / 1e9, rel=0.005)
    assert weights == pytest.approx(7.6156 * 2, rel=0.005)
    assert free == pytest.approx(allowed - weights - activations, abs=0.06)
    assert fit == pytest.approx(free * 1e9 / (CONTEXT * TOKEN), rel=0.01)
    minutes, pinned, usd, usd_tokens, usd_hour = shown(
        r"Prefill of one: ([\d.]+) min \[[\d.-]+\], ([\d.]+) GB of pinned host RAM, ([\d.]+) USD; then ([\d.]+) USD for 1,000 tokens "
        r"\(([\d.]+) USD/h\)"
    )
    assert pinned == pytest.approx(CONTEXT * TOKEN / 1e9, rel=0.005)
    assert usd == pytest.approx(minutes / 60 * usd_hour, rel=0.01)
    assert usd_tokens == pytest.approx(1e3 * by_hand["blocks"] * usd_hour / 3600, rel=0.05)


def test_prefill_is_its_flops_over_the_rates():
    gemms, attention = shown(r"GEMMs at ([\d.]+) Tflop/s, attention at ([\d.]+) Tflop/s", EXPLAINED)
    pairs = of_page(r"each of ([\d.e]+) query-key pairs")
    assert pairs == pytest.approx(CONTEXT * (CONTEXT + 1) / 2, rel=1e-3)
    seconds = 2 * 6.53e9 * CONTEXT / (1e12 * gemms) + of_page(r"and ([\d,]+) flops for each") * pairs / (1e12 * attention)
    (minutes,) = shown(r"Prefill of one: ([\d.]+) min")
    assert seconds <= 60 * minutes <= 1.1 * seconds


def test_the_harness_is_as_published():
    dense, sparse = shown(r"published-harness does not fit ([\d.]+) \[[\d.-]+\] does not fit ([\d.]+)")
    assert dense == pytest.approx(24e9 / (CONTEXT * TOKEN), rel=0.005)
    assert sparse == 6.1
