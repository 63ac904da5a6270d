"""`warm_prefixes`: caches begin with what several sessions begin with, as far as they hold it, and forget it like all else."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.engine.config import EngineConfig
from sim.engine.iteration_cost import IterationCost
from sim.rates.serving import NO_HOST
from sim.specs.precision import Precision
from sim.study.direct import serve_trace
from sim.workload.content import BlockHashes
from sim.workload.trace import Trace
from tests.cli import run
from tests.examples import examples
from tests.price.shapes import QWEN_7B, plausible_rates

COST = IterationCost(QWEN_7B, Precision(), plausible_rates())
TEXT = 6  # blocks
SHARED = ("simulate", "--gpu", "H100", "--model", "Llama-3.1-8B", "--num-prompts", "20", "--request-rate", "2", "--draws", "0", "--json")
WARM = ("--engine-option", "warm_prefixes=true")


def cached(texts, blocks, warm, gap_s=100.0, fast=False, replicas=1):
    """Tokens that each request found cached; a text is TEXT blocks, behind which each has a block of its own."""
    contents = [BlockHashes([*(100 * text + i for i in range(TEXT)), 10_000 + row], 16) for row, text in enumerate(texts)]
    count = len(texts)
    names, tokens = list(map(str, range(count))), np.full(count, 16 * (TEXT + 1))
    trace = Trace(gap_s * np.arange(count), tokens, np.full(count, 3), np.zeros(count), names, [None] * count, list(range(count)), contents)
    config = EngineConfig(num_gpu_blocks=blocks + 1, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=512)
    config = replace(config, options={"warm_prefixes": True}) if warm else config
    return serve_trace(trace, config, COST, NO_HOST, replicas, fast=fast).requests["cached_tokens"].tolist()


@settings(max_examples=examples(60))
@given(st.lists(st.integers(0, 5), min_size=2, max_size=20), st.integers(TEXT + 2, 60))
def test_a_warm_cache_never_finds_less(texts, blocks):
    texts = [*texts, texts[0]]
    assert np.greater_equal(cached(texts, blocks, True), cached(texts, blocks, False)).all()


def test_the_first_request_finds_it_on_every_replica():
    assert cached([0, 0, 1, 1], 60, True) == [16 * TEXT] * 4
    assert cached([0, 0, 0, 0], 60, True, replicas=2) == [16 * TEXT] * 4
    assert cached([0, 0, 0, 0], 60, False, replicas=2) == [0, 0, *[16 * TEXT] * 2]


def test_what_most_ask_for_stays_where_not_all_fits():
    assert cached([1, 0, 0, 1, 0], TEXT + 2, True)[0] == 16 * 2  # beside the six blocks of text 0


@given(st.integers(TEXT + 2, 3 * TEXT))
def test_when_all_of_it_is_evicted_it_is_as_if_it_had_been_cold(blocks):
    others = list(range(2, 8))  # more than the cache holds
    texts = [0, *others, 0, 0, *others[::-1], 1, 1]
    warm, cold = cached(texts, blocks, True), cached(texts, blocks, False)
    assert warm[0] > cold[0]
    assert warm[len(others) + 1 :] == cold[len(others) + 1 :]


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.integers(0, 3), min_size=4, max_size=30), st.integers(TEXT + 2, 60), st.sampled_from([0.001, 100.0]), st.integers(1, 3))
def test_machine_code_begins_alike(texts, blocks, gap_s, replicas):
    texts = [*texts, texts[0]]
    assert cached(texts, blocks, True, gap_s, True, replicas) == cached(texts, blocks, True, gap_s, False, replicas)


def test_what_a_session_says_itself_is_not_there_before_it():
    chats = (*SHARED, "--turns", "3", "--think-time", "5", *WARM)
    result = run(*chats)
    assert (result.code, result.stderr.count("\n")) == (2, 1)
    assert "no two sessions of this workload begin alike" in result.stderr


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--engine", "sglang"), "no option 'warm_prefixes'"),
        (("--no-enable-prefix-caching",), "needs prefix caching"),
        (("--admission", "max-queue=3"), "is not simulated with admission"),
    ],
)
def test_what_it_does_not_go_with_is_one_line(more, says):
    result = run(*SHARED, "--random-prefix-len", "500", *WARM, *more)
    assert (result.code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert says in result.stderr
