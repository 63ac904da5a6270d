"""Small models of every kind, and strategies for shapes and rates, shared by the tests of the bill and its price."""

from hypothesis import strategies as st

from sim.bill import mixed_shape
from sim.policy import dense
from sim.rates import UNITS, Rates
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
    "eager_layer_s": 4e-4,
    "eager_expert_layer_s": 3e-4,
    "chunk_pad_tokens": 100.0,
    "smooth_p": 2.5,
    "find_s": 4e-5,
    "find_unit_s": 2e-6,
    "link_bytes_per_s": 3e10,
    "link_latency_s": 2e-5,
    "gather_s": 2e-4,
    "comm_bytes_per_s": 2e11,
    "comm_latency_s": 1e-5,
    "expert_layer_s": 3e-5,
    "expert_flops_per_s": 3e14,
    "doubling_s": 2e-6,
    "decode_idle": 0.5,
    "last_turn": 0.45,
    "intake_s": 3e-8,
    "spread_layer_s": 2e-4,
    "spread_eager_layer_s": 1e-4,
    "spread_intake_s": 1e-7,
    "runner2_intake_s": 6e-8,
    "runner2_prefill": 0.6,
    "tile_share": 0.4,
    "choice_share": 1.0,
    "expert_io_bytes_per_s": 1e12,
}
assert set(_SCALE) == set(UNITS)


def plausible_rates() -> Rates:
    """One fixed set of rates."""
    return Rates(**_SCALE)


@st.composite
def rate_values(draw):
    """Rates within a factor of two of plausible ones (the exponent stays at 1 or above)."""
    return {name: scale * draw(st.floats(0.5, 2.0)) for name, scale in _SCALE.items()}


@st.composite
def mixed_shapes(draw, model, policy=None):
    """An iteration of up to 8 decodes and 3 prefill chunks."""
    decodes = draw(st.lists(st.integers(1, 2**18), max_size=8))
    chunks = draw(st.lists(st.tuples(st.integers(1, 4096), st.integers(0, 2**17), st.booleans()), max_size=3))
    return mixed_shape(model, decodes, [(n, n + past, last) for n, past, last in chunks], policy or dense())
