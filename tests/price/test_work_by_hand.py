"""Work of an iteration, counted by hand: KV bytes by kind of layer, the busiest rank's experts, a kernels' step, tokens that are sent."""

import math

import pytest

from sim.cost.api_server import SendQueue
from sim.cost.batch import decode_batch
from sim.cost.decode_step import decode_step_work
from sim.cost.work import iteration_work
from sim.specs.attention_policy import blocks, dense
from sim.specs.decode_stack import KERNELS, stack_named
from sim.specs.parallel import Parallel
from sim.specs.precision import Precision
from tests.price.shapes import HYBRID_MOE, QWEN_7B, SLIDING

BF16 = Precision("bf16")


@pytest.mark.parametrize("context", [100, 5000])
def test_a_decode_reads_its_context_and_writes_a_token_in_every_layer(context):
    token = 2 * 4 * 256 * 2  # key and value of 4 heads x 256 in 16 bits, of each layer
    read = 5 * context + 29 * min(context, 1024)
    work = iteration_work(SLIDING, decode_batch(SLIDING, 3.0, float(context)), BF16)
    assert work.kv_bytes == pytest.approx(3 * token * (read + 5 + 29))
    assert work.link_bytes == 0.0


def test_ranks_compute_the_busiest_ones_share_of_experts():
    """64 decodes a rank, four ranks, 8 of 256 experts each: 2048 visits, of which the busiest rank gets 512 and sqrt(2 ln(4) 512) more."""
    one, four = (iteration_work(HYBRID_MOE, decode_batch(HYBRID_MOE, 64.0, 100.0)._replace(others=others), BF16, parallel=parallel)
                 for others, parallel in ((0.0, Parallel()), (192.0, Parallel(1, 4, True))))  # fmt: skip
    visits = 512 + math.sqrt(2 * math.log(4) * 512)
    assert four.expert_flops / one.expert_flops == pytest.approx(visits / (64 * 8))


@pytest.mark.parametrize(("policy", "crosses"), [(dense(), False), (blocks(8), False), (blocks(8, "host"), True)])
def test_a_step_of_the_kernels_crosses_the_host_link_only_for_kv_in_host_ram(policy, crosses):
    stack = stack_named(KERNELS)
    work = decode_step_work(stack, QWEN_7B, decode_batch(QWEN_7B, 2.0, 65536.0, stack.policy(policy)), BF16, stack.policy(policy))
    token = 28 * 2 * 4 * 128 * 2
    assert work.link_bytes == (2 * 8 * 128 * token if crosses else 0.0)


def test_tokens_wait_for_those_that_are_sent_before_them():
    queue = SendQueue(10)
    assert [queue.ahead(now, 3) for now in (0, 5, 100, 100)] == [0.0, 2.5, 0.0, 3.0]
