"""The rates as random variables: log-normal around their declared medians, never past a datasheet peak."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from sim.priors import Prior
from sim.rates import UNITS, Rates

Array = NDArray[np.float64]
# Weights and KV cross the same memory: most of what is unknown about one is unknown about the other.
SHARED_MEMORY = 0.8
# Which terms of the bill show a rate: a rate none of whose terms is ever non-zero keeps its prior.
SEEN_THROUGH: dict[str, tuple[str, ...]] = {
    "c0_s": ("iterations",),
    "c_seq_s": ("sequences",),
    "c_prefill_s": ("has_prefill",),
    "beta": ("weight_bytes",),
    "beta_expert": ("expert_bytes",),
    "beta_kv": ("kv_bytes", "prefill_kv_bytes", "summary_bytes"),
    "beta_state": ("state_bytes",),
    "linear_flops_per_s": ("linear_flops",),
    "attention_flops_per_s": ("attention_flops", "prefill_flops"),
    "eager_layer_s": ("eager_layers",),
    "eager_expert_layer_s": ("eager_expert_layers",),
    "chunk_pad_tokens": ("chunk_flops",),
    "smooth_p": ("weight_bytes", "kv_bytes"),
    "find_s": ("finds",),
    "find_unit_s": ("found_units",),
    "link_bytes_per_s": ("link_bytes",),
    "link_latency_s": ("link_ops",),
    "gather_s": ("gathers",),
    "comm_bytes_per_s": ("comm_bytes",),
    "comm_latency_s": ("comm_ops",),
    "expert_layer_s": ("expert_layers",),
    "expert_flops_per_s": ("expert_flops",),
    "doubling_s": ("doublings",),
    "decode_idle": ("idle_kv_bytes",),
    "last_turn": ("last_turn_flops",),
    "intake_s": ("intake_tokens",),
    "spread_layer_s": ("spread_layers",),
    "spread_eager_layer_s": ("spread_eager_layers",),
    "spread_intake_s": ("spread_intake_tokens",),
    "runner2_intake_s": ("runner2_intake_tokens",),
    "runner2_prefill": ("second_runner_prefill",),
    "tile_share": ("tile_flops",),
    "choice_share": ("choice_bytes",),
    "expert_io_bytes_per_s": ("expert_io_bytes",),
}
# Terms that are charged for only where another is 0.
UNLESS = {"tile_flops": "choice_known"}


def value(prior: Prior, z: Any, exp: Any = np.exp) -> Any:
    """The rate whose standard score is z: median at 0, log-slope sigma there, below `prior.upper` for every z."""
    if not np.isfinite(prior.upper):
        return prior.median * exp(prior.sigma * z)
    share = prior.median / prior.upper
    a, slope = logit(share), prior.sigma / (1 - share)
    if exp is np.exp:
        return prior.upper * expit(a + slope * z)
    return prior.upper / (1 + exp(-(a + slope * z)))


def unseen(bill: Mapping[str, Array]) -> set[str]:
    """Rates that no term of the bill shows."""

    def charged(term: str) -> Any:
        return bill[term] * (1.0 - bill[UNLESS[term]]) if term in UNLESS else bill[term]

    return {rate for rate, terms in SEEN_THROUGH.items() if not any(np.any(charged(t) > 0) for t in terms)}


def prior_scores(names: Collection[str], draws: int, rng: np.random.Generator) -> dict[str, Array]:
    """Standard-normal scores [draws] by rate, with the memory bandwidths correlated as the model has them."""
    z = {name: rng.standard_normal(draws) for name in UNITS}
    z["beta_kv"] = SHARED_MEMORY * z["beta"] + np.sqrt(1 - SHARED_MEMORY**2) * z["beta_kv"]
    return {name: z[name] for name in UNITS if name in names}


def prior_draws(priors: Mapping[str, Prior], draws: int, rng: np.random.Generator) -> Rates:
    """Rates [draws] from their priors."""
    scores = prior_scores(list(UNITS), draws, rng)
    return Rates(**{name: value(priors[name], scores[name]) for name in UNITS})
