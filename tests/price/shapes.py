"""Small models of every kind, and strategies for shapes and rates, shared by the tests of the bill and its price."""

from collections import deque
from collections.abc import Iterable, Sequence

from hypothesis import strategies as st

from sim.cost.api_server import SharedServer
from sim.cost.batch import mixed_batch
from sim.cost.rates import UNITS, Rates
from sim.engine.interface import Iteration, Request
from sim.specs.attention_policy import dense
from sim.specs.model import Attention, DenseMlp, GatedDeltaNet, LatentAttention, LayerGroup, ModelSpec, MoeMlp

QWEN_7B = ModelSpec("dense", 3584, 152064, (LayerGroup(28, Attention(28, 4, 128, qkv_bias=True), DenseMlp(18944)),), False, 2**20)
SLIDING = ModelSpec(
    "sliding",
    2560,
    262208,
    (LayerGroup(5, Attention(8, 4, 256), DenseMlp(10240), 4), LayerGroup(29, Attention(8, 4, 256, window=1024), DenseMlp(10240), 4)),
    True,
    2**17,
)
HYBRID_MOE = ModelSpec(
    "hybrid",
    2048,
    248320,
    (
        LayerGroup(10, Attention(16, 2, 256, output_gate=True), MoeMlp(256, 8, 512, 512, True)),
        LayerGroup(30, GatedDeltaNet(16, 32, 128, 128), MoeMlp(256, 8, 512, 512, True)),
    ),
    False,
    2**18,
)
LATENT = ModelSpec("latent", 2048, 102400, (LayerGroup(27, LatentAttention(16, None, 512, 128, 64, 128), DenseMlp(10944)),), False, 2**17)
MODELS = [QWEN_7B, SLIDING, HYBRID_MOE, LATENT]

_SCALE = {
    "c0_s": 3e-3,
    "c_seq_s": 1e-5,
    "c_prefill_s": 1e-3,
    "beta": 2e12,
    "beta_expert": 2.2e12,
    "beta_kv": 2e12,
    "beta_state": 2e12,
    "linear_flops_per_s": 5e14,
    "attention_flops_per_s": 3e14,
    "launch_layer_s": 4e-4,
    "kernel_s": 2e-6,
    "c1_s": 4e-5,
    "c1_unit_s": 2e-6,
    "link_bytes_per_s": 3e10,
    "gather_s": 2e-4,
    "comm_bytes_per_s": 2e11,
    "comm_latency_s": 1e-5,
    "expert_flops_per_s": 3e14,
}
assert set(_SCALE) == set(UNITS)


def plausible_rates() -> Rates:
    """One fixed set of rates."""
    return Rates(**_SCALE)


@st.composite
def rate_values(draw):
    """Rates within a factor of two of plausible ones."""
    return {name: scale * draw(st.floats(0.5, 2.0)) for name, scale in _SCALE.items()}


@st.composite
def mixed_shapes(draw, model, policy=None):
    """An iteration of up to 8 decodes and 3 prefill chunks."""
    decodes = draw(st.lists(st.integers(1, 2**18), max_size=8))
    chunks = draw(st.lists(st.tuples(st.integers(1, 4096), st.integers(0, 2**17), st.booleans()), max_size=3))
    return mixed_batch(model, decodes, [(n, n + past, last) for n, past, last in chunks], policy or dense())


def iteration_of(contexts: Iterable[int], chunks: Iterable[tuple[int, int, int]] = ()) -> Iteration:
    """An iteration of decodes and chunks (tokens, context at the end, whether the last is sampled)."""
    decodes = [(Request(f"d{i}", 0.0, n, 2, computed_tokens=n, generated_tokens=1), 1) for i, n in enumerate(contexts)]
    prefill = [(Request(f"p{i}", 0.0, end + 1 - rows, 1, computed_tokens=end - n), n) for i, (n, end, rows) in enumerate(chunks)]
    return Iteration(decodes + prefill)


def departures(arrivals: Sequence[int], works: Sequence[int]) -> list[int]:
    """Departures from a SharedServer of the jobs that arrive at these ticks (in order); those without work leave at once."""
    server, left, inside = SharedServer(), list(arrivals), deque[int]()
    for i, arrival in enumerate([*arrivals, None]):
        while (leaves := server.next_departure()) is not None and (arrival is None or leaves <= arrival):
            server.depart(leaves)
            left[inside.popleft()] = leaves
        if arrival is not None and works[i]:
            server.arrive(arrival, works[i])
            inside.append(i)
    return left
