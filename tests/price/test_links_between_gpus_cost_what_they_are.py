"""Two cards without peer access, and two nodes, take what public runs of them took, within the interval; a named network is not a guess."""

from dataclasses import replace

import numpy as np
import pytest

from sim.cost.batch import decode_batch
from sim.cost.step_time import step_time_s
from sim.rates.load import load_rates, scope_notes
from sim.rates.serving import as_served
from sim.specs.topology import default_topology
from sim.study.deployment import Deployment
from sim.study.simulate_question import simulate
from sim.workload.workload import Workload


def decode_ms(d, batch, context):
    """Median and 5-95 % of a decode step as served."""
    rates = as_served(load_rates(d, draws=400))[0]
    shape = decode_batch(d.model, float(batch), float(context))
    low, high = np.quantile(step_time_s(d.work(shape), rates.draws, np), [0.05, 0.95])
    return 1e3 * step_time_s(d.work(shape), rates.point), 1e3 * low, 1e3 * high


def test_two_nodes_hold_the_public_figure():
    """DeepSeek-R1 on 16 H100s of two nodes, one client: 31.2 ms a token; priced as one NVLink domain it is 7.4."""
    d = Deployment.of("DeepSeek-V3", "H100", dtype="fp8", tp=16)
    point, low, high = decode_ms(d, 1, 256)
    assert low < 31.2 < high
    assert point > 15.0
    assert any("16 GPUs on 2 nodes" in note and "nobody named" in note for note in scope_notes(d, load_rates(d, draws=4)))


def test_two_cards_without_peer_access_hold_the_public_figures():
    """Two A100-PCIe, Qwen2-7B, 100 prompts at once of 1024/1024: 29.0 ms a token, 4.97 s to the first, 2,896 tokens/s; one alone 3,352."""
    load = Workload.drawn(100, input_len=1024, output_len=1024, request_rate=float("inf"))
    limits = {"max_num_seqs": 256, "max_model_len": 16384}
    two, one = (
        simulate(Deployment.of("Qwen2.5-7B", "A100-80G-PCIe", tp=tp, gpu_memory_utilization=share, **limits), load, keep_iterations=False)
        for tp, share in ((2, 0.25), (1, 0.5))
    )
    for figure, measured in {"median_tpot_ms": 29.0, "median_ttft_ms": 4970.0, "output_throughput": 2896.0}.items():
        low, high = two.rate_intervals[figure]
        assert low < measured < high, figure
    assert two.summary["output_throughput"] < one.summary["output_throughput"]


def test_links_are_ordered():
    d = Deployment.of("Qwen2.5-7B", "A100-80G-PCIe", tp=2)
    usual = default_topology(d.gpu)
    ways = [
        replace(usual, nvlink_domain=2),
        replace(usual, peer_access=True),
        replace(usual, peer_access=True, pcie_roots=8),
        usual,
        replace(usual, gpus_per_node=1, network=25e9),
    ]
    steps = [decode_ms(replace(d, topology=way), 64, 1024)[0] for way in ways]
    assert steps == sorted(steps)


def test_a_named_network_is_a_narrower_answer():
    d = Deployment.of("DeepSeek-V3", "H100", dtype="fp8", tp=16)
    named = replace(d, topology=replace(default_topology(d.gpu), network=50e9, network_latency_s=60e-6))
    (_, low, high), (_, named_low, named_high) = decode_ms(d, 1, 256), decode_ms(named, 1, 256)
    assert named_high - named_low < high - low


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_within_direct_links_nothing_changes(tp):
    d = Deployment.of("Llama-3.1-8B", "H100", tp=tp)
    assert d.parallel.all_reduce == (1.0, 1.0)
    assert not any("declared prior for" in note for note in scope_notes(d, load_rates(d, draws=4)))
