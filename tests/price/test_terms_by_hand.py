"""Each term of the step time is its work over its own rate, worked out by hand: no two rates are alike, so none stands for another."""

import pytest

from sim.cost.rates import Rates
from sim.cost.step_time import Terms, step_terms
from sim.cost.work import Work

RATES = Rates(
    c0_s=0.011, c_seq_s=0.0003, c_prefill_s=0.017, launch_layer_s=0.19, kernel_s=0.00023, beta=2e12, beta_expert=3e12, beta_kv=5e12,
    beta_state=7e12, linear_flops_per_s=11e14, expert_flops_per_s=13e14, attention_flops_per_s=17e14, c1_s=0.019, c1_unit_s=0.0029,
    link_bytes_per_s=31e9, gather_s=0.0037, comm_bytes_per_s=41e9, comm_latency_s=0.00043,
)  # fmt: skip
CUBES = 0.01 * 9 ** (1 / 3)  # the smooth maximum of 10 and 20 ms
BY_HAND = [
    ("fixed", {}, 0.011),
    ("sequences", {"sequences": 7}, 0.0021),
    ("prefill", {"has_prefill": 1}, 0.017),
    ("kernels", {"kernels": 100}, 0.023),
    ("kernels", {"activation_bytes": 4e10}, 0.02),
    ("weights", {"linear_bytes": 2e10, "linear_flops": 22e12}, CUBES),
    ("weights", {"linear_bytes": 4e10, "linear_flops": 11e12}, CUBES),
    ("weights", {"head_bytes": 2e10, "head_flops": 22e12}, CUBES),
    ("weights", {"expert_bytes": 3e10, "expert_flops": 26e12}, CUBES),
    ("weights", {"linear_bytes": 2e10, "head_bytes": 2e10, "expert_bytes": 3e10}, 0.03),  # stages follow one another
    ("kv", {"kv_bytes": 5e10, "attention_flops": 34e12}, CUBES),
    ("kv", {"prefill_kv_bytes": 5e10, "prefill_flops": 34e12}, CUBES),
    ("kv", {"kv_bytes": 5e10, "prefill_flops": 34e12}, 0.03),  # the bytes of one do not hide behind the other's flops
    ("state", {"state_bytes": 7e10}, 0.01),
    ("summaries", {"summary_bytes": 5e10}, 0.01),
    ("c1", {"selecting_layers": 3, "selected_units": 10}, 0.086),
    ("link", {"link_bytes": 31e7, "gathers": 10}, 0.047),
    ("link", {"link_bytes": 62e7, "link_hidden_bytes": 31e7, "state_bytes": 10.5e10}, 0.01),  # 10 of 20 ms may hide behind 15
    ("link", {"link_bytes": 62e7, "link_hidden_bytes": 62e7, "state_bytes": 10.5e10}, 0.005),  # 20 may, behind 15
    ("comm", {"comm_bytes": 41e7, "comm_ops": 10}, 0.0143),
    ("launch", {"launch_layers": 1}, 0.19),
    ("launch", {"launch_layers": 1, "state_bytes": 66.5e10}, 0.095 * (65 ** (1 / 6) - 1)),  # the GPU is busy half as long: the sixth power
    ("launch", {"launch_layers": 1, "link_bytes": 0.095 * 31e9}, 0.095 * (65 ** (1 / 6) - 1)),  # or waits for the host link
]


@pytest.mark.parametrize(("term", "work", "seconds"), BY_HAND, ids=lambda value: value if isinstance(value, str) else "")
def test_a_term_is_its_work_over_its_rate(term, work, seconds):
    found = step_terms(Work(**(dict.fromkeys(Work._fields, 0.0) | work)), RATES)
    assert getattr(found, term) == pytest.approx(seconds, rel=1e-12)


def test_every_term_is_among_them():
    assert {term for term, _, _ in BY_HAND} == set(Terms._fields)
