"""An iteration is cut into parts for pipeline stages and data-parallel ranks: nothing is lost, none is much heavier than its share."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sim.cost.batch import decode_batch
from sim.cost.coefficients import coefficients
from sim.cost.mlp_work import busiest_experts, expected_experts
from sim.cost.pipeline import share_of
from sim.cost.traffic import traffic
from sim.cost.work import iteration_work
from sim.deployment.memory import loaded_weight_bytes, part_weight_bytes
from sim.engine.iteration_cost import IterationCost
from sim.errors import UsageError
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.specs.parallel import Parallel, check_parallel
from sim.specs.precision import Precision
from sim.study.deployment import Deployment
from tests.price.shapes import plausible_rates

MOE, DENSE = get_model("Qwen3-30B-A3B"), get_model("Llama-3.1-8B")
CHUNKS = st.lists(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.just(n), st.integers(n, 9000), st.integers(0, 1))), max_size=8)


@given(CHUNKS, st.integers(0, 400), st.sampled_from([Parallel(2), Parallel(7), Parallel(1, 4), Parallel(2, 3)]), st.integers(256, 2048))
def test_the_heaviest_part_has_its_share_and_at_most_one_piece_more(chunks, batch, parallel, most):
    assume(chunks or batch)
    cost = IterationCost(DENSE, Precision(), plausible_rates(), parallel=parallel, part_tokens=most)
    (part,) = cost.batches_of([100] * batch, chunks)
    tokens, total = part.decode_seqs + part.prefill_tokens, batch + sum(n for n, _, _ in chunks)
    longest = max((n for n, _, _ in chunks), default=0)
    assert tokens >= total / parallel.parts
    assert tokens <= -(-total // parallel.parts) + (min(longest, most) if parallel.pp > 1 else longest)
    assert part.others == (max(total / parallel.pp - tokens, 0.0) if parallel.dp > 1 else 0.0)


@settings(max_examples=30)
@given(st.integers(1, 400), st.sampled_from([Parallel(2), Parallel(1, 4), Parallel(2, 2), Parallel(1, 8, True)]))
def test_parts_have_one_sequence_at_least_and_an_even_share(batch, parallel):
    part = share_of(decode_batch(DENSE, float(batch), 1000.0), parallel)
    assert part.decode_seqs == pytest.approx(max(batch / parallel.parts, 1.0))
    assert part.decode_context == pytest.approx(1000.0 * part.decode_seqs)


@given(st.sampled_from([(128, 8), (256, 8), (64, 6)]), st.integers(1, 5000), st.sampled_from([2, 8, 32]))
def test_the_busiest_gpu_reads_more_than_the_mean_and_never_more_than_it_holds(of, tokens, gpus):
    experts, top_k = of
    most = busiest_experts(experts, top_k, tokens, gpus)
    assert expected_experts(experts, top_k, tokens) / gpus <= most <= experts / gpus * (1 + 1e-12)


def test_ranks_share_experts_and_nothing_else():
    one, eight = (part_weight_bytes(MOE, Precision(), 1, Parallel(1, dp)) for dp in (1, 8))
    c = coefficients(MOE, Precision())
    experts = sum(each * count for each, count, _ in c.experts)
    assert one == loaded_weight_bytes(MOE, Precision())
    assert one - eight == pytest.approx(experts * 7 / 8)


def test_latents_selectors_and_routers_are_whole_on_every_gpu():
    """DeepSeek V3.2, one layer with experts, by hand: hidden 7168, ranks 1536 and 512 + 64, a selector of 64 x 128, 256 experts."""
    model = get_model("DeepSeek-V3.2")
    experts = next(group for group in model.groups if group.mlp.kind == "moe")
    latents, selector, router = 7168 * (1536 + 576), 1536 * 64 * 128 + 7168 * (128 + 64), 256 * 7168
    assert sum(each.elements for each in experts.matrices(model.hidden) if each.replicated) == latents + selector + router
    one, eight = (loaded_weight_bytes(model, Precision("bf16"), tp) for tp in (1, 8))
    dense = model.layers - experts.count
    whole = 2.0 * (experts.count * (latents + selector + router) + dense * (latents + selector))
    assert eight == pytest.approx(one / 8 + whole * 7 / 8, rel=1e-12)


def test_stages_hold_all_weights_once():
    whole, half = (part_weight_bytes(DENSE, Precision(), 1, Parallel(pp)) for pp in (1, 2))
    assert 2 * half == pytest.approx(whole)  # 32 layers and two tables in two stages


def test_traffic_is_that_of_tensor_parallelism_and_more():
    split = iteration_work(MOE, decode_batch(MOE, 1.0, 1000.0), Precision(), tp=2)
    assert (split.comm_bytes, split.comm_ops) == (2.0 * MOE.layers * MOE.hidden * 2.0 * 2.0 * 1 / 2, 2.0 * MOE.layers)
    assert traffic(MOE, 96, 2) == (0.0, 2.0 * MOE.layers)  # all-reduces depend on the message
    assert traffic(MOE, 96, 1) == (0.0, 0.0)
    swapped, handed = traffic(MOE, 96, 1, Parallel(1, 8)), traffic(DENSE, 64, 1, Parallel(4))
    # of 8 GPUs a token with 8 experts reaches 8 (1 - (7/8)**8) = 5.25, its own among them; dispatch and combine
    assert swapped[0] == pytest.approx(MOE.layers * 2 * 7 / 8 * 5.2508 * MOE.hidden * 2, rel=1e-4)
    assert handed[0] == 3 * 2 * DENSE.hidden * 2


def test_whole_experts_cost_imbalance_and_ranks_bring_each_other_rows():
    shape = decode_batch(MOE, 32.0, 1000.0)
    cut_up = iteration_work(MOE, shape, Precision(), tp=8)
    whole = iteration_work(MOE, shape, Precision(), tp=8, parallel=Parallel(1, 1, True))
    assert cut_up.expert_bytes < whole.expert_bytes < 1.5 * cut_up.expert_bytes
    d = Deployment(MOE, get_gpu("H100"), parallel=Parallel(1, 8))
    assert d.work(decode_batch(MOE, 256.0, 1000.0)).expert_flops == pytest.approx(256 / 8 * coefficients(MOE, Precision()).expert_flops)


@pytest.mark.parametrize(
    ("model", "tp", "parallel", "words"),
    [
        (DENSE, 1, Parallel(33), "pipeline-parallel-size 33 is more than the 32 layers"),
        (DENSE, 1, Parallel(1, 1, True), "enable-expert-parallel: Llama-3.1-8B has no experts"),
        (MOE, 1, Parallel(1, 3, True), "enable-expert-parallel: 128 experts .* data-parallel-size 3"),
        (MOE, 1, Parallel(0), "pipeline-parallel-size must be at least 1"),
    ],
)
def test_what_does_not_split_is_refused_by_its_name(model, tp, parallel, words):
    with pytest.raises(UsageError, match=words):
        check_parallel(model, tp, parallel)
