"""The price of a bill: the one formula, written once for floats, numpy and PyTensor.

    t = c0 + c_expert*MoE layers + c_seq*sequences + c_double*layers*log2(sequences) + c_prefill*[prefill]*(1 + runner2)
        + smax(weights/beta, linear flops/F) + choice/beta + smax(experts/beta_expert, expert flops/F_e)
        + expert i/o / beta_io
        + smax(KV/beta_kv, attention flops/F_a) of decodes + idle*decode_idle/beta_kv + the same smax of prefill chunks + state/beta_state
        + summaries/beta_kv + find + exposed link + exposed launches + comm + intake*prompt tokens taken in

smax(a, b) = (a**p + b**p)**(1/p) is a smooth maximum of a stage's memory and compute time; stages follow one another, so they add.
The published three-parameter form (c0, beta, c1) is this with beta_kv = beta and the compute terms far below the memory terms.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sim.bill import Bill
from sim.namespaces import FLOAT
from sim.rates import Rates
from sim.smooth import smooth_max as smooth_max


class Terms(NamedTuple):
    """Seconds by named term; their sum is the step time."""

    fixed: Any  # host and launch cost of an iteration
    sequences: Any  # per-sequence cost
    prefill: Any  # cost of carrying prefill at all
    weights: Any  # linear layers and routed experts: weight bytes or matrix flops
    kv: Any  # attention of decodes and of prefill chunks: KV bytes or attention flops
    state: Any  # recurrent state
    summaries: Any  # block-summary scan
    find: Any  # price of finding, c1(k)
    link: Any  # host link, not hidden behind compute
    comm: Any  # tensor-parallel all-reduce
    launch: Any  # host launching kernels one by one, as far as the GPU has to wait for it


MEANING = {
    "fixed": "fixed cost",
    "sequences": "per-sequence cost",
    "prefill": "prefill overhead",
    "weights": "weight reads",
    "kv": "KV reads",
    "state": "recurrent state",
    "summaries": "summary scan",
    "find": "price of finding",
    "link": "host link",
    "comm": "all-reduce",
    "launch": "kernel launches",
}


# The host launches ahead of the GPU and shows only where the GPU would run dry. The exponent is a constant because most iterations launch
# nothing, and 0**p has no gradient in p; the difference of two smooth maxima is exactly zero there.
LAUNCH_P = 6.0


def step_terms(bill: Bill, rates: Rates, xp: Any = FLOAT) -> Terms:
    """Seconds by term of one iteration. Bill and rates broadcast together; `xp` supplies minimum (FLOAT, numpy or pytensor.tensor)."""
    p = rates.smooth_p
    products = bill.linear_flops + rates.tile_share * (1.0 - bill.choice_known) * bill.tile_flops
    weights = smooth_max(bill.weight_bytes / rates.beta, products / rates.linear_flops_per_s, p) + smooth_max(
        bill.expert_bytes / rates.beta_expert, bill.expert_flops / rates.expert_flops_per_s, p
    )
    weights = weights + bill.expert_io_bytes / rates.expert_io_bytes_per_s + rates.choice_share * bill.choice_bytes / rates.beta
    # one kernel serves decodes and chunks, but its blocks take turns: the bytes of one do not hide behind the products of the other
    rows = bill.prefill_flops + rates.chunk_pad_tokens * bill.chunk_flops + rates.last_turn * bill.last_turn_flops
    chunks = rows / rates.attention_flops_per_s
    kv = smooth_max(bill.kv_bytes / rates.beta_kv, bill.attention_flops / rates.attention_flops_per_s, p)
    kv = kv + rates.decode_idle * bill.idle_kv_bytes / rates.beta_kv
    kv = kv + smooth_max(bill.prefill_kv_bytes / rates.beta_kv, chunks, p)
    state = bill.state_bytes / rates.beta_state
    link = bill.link_bytes / rates.link_bytes_per_s + bill.link_ops * rates.link_latency_s + bill.gathers * rates.gather_s
    busy = weights + kv + state
    hidden = bill.link_overlap * xp.minimum(link, busy)
    host = bill.eager_layers * rates.eager_layer_s + bill.eager_expert_layers * rates.eager_expert_layer_s
    host = host + bill.spread_layers * rates.spread_layer_s + bill.spread_eager_layers * rates.spread_eager_layer_s
    taken = bill.intake_tokens * rates.intake_s + bill.spread_intake_tokens * rates.spread_intake_s
    taken = taken + bill.runner2_intake_tokens * rates.runner2_intake_s
    return Terms(
        fixed=bill.iterations * rates.c0_s + bill.expert_layers * rates.expert_layer_s + taken,
        sequences=bill.sequences * rates.c_seq_s + bill.doublings * rates.doubling_s,
        prefill=(bill.has_prefill + rates.runner2_prefill * bill.second_runner_prefill) * rates.c_prefill_s,
        weights=weights,
        kv=kv,
        state=state,
        summaries=bill.summary_bytes / rates.beta_kv,
        find=bill.finds * rates.find_s + bill.found_units * rates.find_unit_s,
        link=link - hidden,
        comm=bill.comm_bytes / rates.comm_bytes_per_s + bill.comm_ops * rates.comm_latency_s,
        launch=smooth_max(busy, host, LAUNCH_P) - smooth_max(busy, 0.0, LAUNCH_P),
    )


def step_time_s(bill: Bill, rates: Rates, xp: Any = FLOAT) -> Any:
    """Seconds of one iteration: the sum of its terms."""
    total: Any = 0.0
    for term in step_terms(bill, rates, xp):
        total = total + term
    return total


def binding_term(terms: Terms) -> str:
    """The name of the largest term (floats)."""
    return max(terms._fields, key=lambda name: getattr(terms, name))
