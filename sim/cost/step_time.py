"""Step time: the one formula, written once for floats, numpy and PyTensor.

    t = c0 + c_seq*sequences + c_prefill*[prefill] + kernel*kernels + activations/beta
        + smax(linear bytes/beta, linear flops/F) + smax(head bytes/beta, head flops/F)
        + smax(expert bytes/beta_expert, expert flops/F_expert)
        + smax(KV/beta_kv, attention flops/F_attention) of decodes + the same of prefill chunks
        + state/beta_state + summaries/beta_kv + c1 + exposed host link + all-reduces + exposed launches

smax(a, b) = (a**3 + b**3)**(1/3) is a smooth maximum of a stage's memory and compute time; stages follow one another, so they add.
The published three-parameter form (c0, beta, c1) is this with beta_kv = beta and the compute terms far below the memory terms.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sim.cost.rates import Rates
from sim.cost.smooth import smooth_max
from sim.cost.work import AttentionWork, HeadWork, RowWork, Work
from sim.namespaces import FLOAT


class Terms(NamedTuple):
    """Seconds by named term; their sum is the step time."""

    fixed: Any  # host cost of an iteration
    sequences: Any  # per-sequence host cost
    prefill: Any  # host cost of carrying prefill
    kernels: Any  # small kernels between GEMMs
    weights: Any  # linear layers, head and routed experts: weight bytes or matrix flops
    kv: Any  # attention of decodes and of prefill chunks: KV bytes or attention flops
    state: Any  # recurrent state
    summaries: Any  # block-summary scan
    c1: Any  # block selection, c1(k)
    link: Any  # host link, not hidden behind compute
    comm: Any  # tensor-parallel all-reduce
    launch: Any  # host launching kernels one by one, as far as the GPU has to wait for it


# What texts, reports, plots, JSON and run files call a term
NAMES = Terms(
    fixed="fixed cost",
    sequences="per-sequence cost",
    prefill="prefill overhead",
    kernels="small kernels",
    weights="linear layers",
    kv="attention",
    state="recurrent state",
    summaries="summary scan",
    c1="block selection",
    link="host link",
    comm="all-reduce",
    launch="kernel launches",
)

# The host launches ahead of the GPU and shows only where the GPU would run dry; a difference of two smooth maxima is exactly zero where
# nothing is launched.
LAUNCH_P = 6.0


def kernels_s(work: Work | RowWork, rates: Rates) -> Any:
    """Small kernels: a floor each, and the bytes that rows pass through memory."""
    return work.kernels * rates.kernel_s + work.activation_bytes / rates.beta


def linear_s(work: Work | RowWork, rates: Rates) -> Any:
    """Linear layers and routed experts."""
    linear = smooth_max(work.linear_bytes / rates.beta, work.linear_flops / rates.linear_flops_per_s)
    return linear + smooth_max(work.expert_bytes / rates.beta_expert, work.expert_flops / rates.expert_flops_per_s)


def head_s(work: Work | HeadWork, rates: Rates) -> Any:
    """Output projection."""
    return smooth_max(work.head_bytes / rates.beta, work.head_flops / rates.linear_flops_per_s)


def attention_s(work: Work | AttentionWork, rates: Rates) -> Any:
    """Attention. One kernel serves decodes and chunks, but its blocks take turns: the bytes of one do not hide behind the other's flops."""
    decodes = smooth_max(work.kv_bytes / rates.beta_kv, work.attention_flops / rates.attention_flops_per_s)
    return decodes + smooth_max(work.prefill_kv_bytes / rates.beta_kv, work.prefill_flops / rates.attention_flops_per_s)


def all_reduce_s(work: Work | RowWork, rates: Rates) -> Any:
    """Tensor-parallel all-reduces."""
    return work.comm_bytes / rates.comm_bytes_per_s + work.comm_ops * rates.comm_latency_s


def exposed_launch_s(busy: Any, launch_layers: Any, rates: Rates) -> Any:
    """Host time of launching `launch_layers` layers that `busy` seconds of the GPU, or of its waiting for the host link, do not hide."""
    return smooth_max(busy, launch_layers * rates.launch_layer_s, LAUNCH_P) - smooth_max(busy, 0.0, LAUNCH_P)


def terms_of(
    rates: Any, sequences: Any, has_prefill: Any, kernels: Any, weights: Any, kv: Any, state: Any, comm: Any, launch: Any,
    summaries: Any = 0.0, c1: Any = 0.0, link: Any = 0.0,
) -> Terms:  # fmt: skip
    """The formula: its terms, of the seconds of an iteration's stages and of counts. Compiled, too (sim.cluster.compiled)."""
    return Terms(
        rates.c0_s, sequences * rates.c_seq_s, has_prefill * rates.c_prefill_s, kernels, weights, kv, state, summaries, c1, link, comm,
        launch,
    )  # fmt: skip


def total_s(terms: Terms) -> Any:
    """Seconds of all terms: the GPU's stages, one after the other, between the costs of the host and of links."""
    busy = terms.kernels + terms.weights + terms.kv + terms.state
    host = terms.fixed + terms.sequences + terms.prefill
    return host + busy + terms.summaries + terms.c1 + terms.link + terms.comm + terms.launch


def step_terms(work: Work, rates: Rates, xp: Any = FLOAT) -> Terms:
    """Seconds by term of one iteration. Work and rates broadcast together; `xp` supplies minimum (FLOAT, numpy or pytensor.tensor)."""
    small, weights, kv = kernels_s(work, rates), linear_s(work, rates) + head_s(work, rates), attention_s(work, rates)
    state = work.state_bytes / rates.beta_state
    busy = small + weights + kv + state
    link = work.link_bytes / rates.link_bytes_per_s + work.gathers * rates.gather_s
    link = link - xp.minimum(work.link_hidden_bytes / rates.link_bytes_per_s, busy)
    return terms_of(
        rates,
        work.sequences,
        work.has_prefill,
        small,
        weights,
        kv,
        state,
        all_reduce_s(work, rates),
        exposed_launch_s(busy + link, work.launch_layers, rates),
        summaries=work.summary_bytes / rates.beta_kv,
        c1=work.selecting_layers * rates.c1_s + work.selected_units * rates.c1_unit_s,
        link=link,
    )


def step_time_s(work: Work, rates: Rates, xp: Any = FLOAT) -> Any:
    """Seconds of one iteration: the sum of its terms."""
    return total_s(step_terms(work, rates, xp))


def binding_term(terms: Terms) -> str:
    """The name of the largest term (floats)."""
    return str(NAMES[terms.index(max(terms))])
