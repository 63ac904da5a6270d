"""What is known of a GPU's rates before its own measurements are looked at."""

from __future__ import annotations

from dataclasses import replace

from sim.precision import Precision
from sim.priors import Prior, priors
from sim.specs.gpu import GpuSpec

# The declared c0 stands for one published stack; engines differ by more than it allows.
SHOWN_BY_ENGINES = (
    "c0_s", "c_seq_s", "c_prefill_s", "eager_layer_s", "eager_expert_layer_s", "beta", "beta_expert", "beta_kv",
    "linear_flops_per_s", "attention_flops_per_s", "chunk_pad_tokens", "smooth_p", "expert_layer_s", "expert_flops_per_s",
    "doubling_s", "decode_idle", "last_turn", "intake_s", "spread_layer_s", "spread_eager_layer_s", "spread_intake_s",
    "runner2_intake_s", "runner2_prefill", "tile_share", "choice_share", "expert_io_bytes_per_s",
)  # fmt: skip
WIDER = {
    "c0_s": (1.5e-3, 0.8),
    "c_seq_s": (16e-6, 0.8),
    "c_prefill_s": (1.0e-3, 1.0),
    "expert_layer_s": (35e-6, 1.0),
}


def calibration_priors(gpu: GpuSpec, precision: Precision) -> dict[str, Prior]:
    """Datasheet x efficiency and weak host costs; published numbers only for rates that engine iterations do not show.

    Numbers published for this very GPU come from other stacks: they would bias what its own measurements say.
    """
    chosen, plain = priors(gpu, precision), priors(gpu, precision, published=False)
    chosen |= {name: plain[name] for name in SHOWN_BY_ENGINES}
    for name, (median, sigma) in WIDER.items():
        chosen[name] = replace(chosen[name], median=median, sigma=sigma, basis=f"weak prior, {median:g} s")
    return chosen
