"""A waiting request takes the free slot whose cache shares most of its prompt, where that is enough of it."""

from dataclasses import replace

import pytest

from sim.engine.config import EngineConfig
from sim.engine.interface import BUDGET, SLOTS, Request
from sim.engine.schedulers import LlamaCppScheduler

BLOCK = 16
CONFIG = EngineConfig("llamacpp", num_gpu_blocks=65, block_size=BLOCK, max_num_seqs=3, max_model_len=320, enable_prefix_caching=True)


def prompt(name, hashes):
    return Request(name, 0.0, BLOCK * len(hashes), 1, tuple(hashes))


@pytest.mark.parametrize(("asked", "slot", "cached"), [("abcd", 1, 3), ("abxx", 2, 3), ("zz", 0, 2), ("wxyz", 2, 0)])
def test_the_longest_common_beginning(asked, slot, cached):
    scheduler = LlamaCppScheduler(CONFIG)
    for name in ("abxy", "abce", "zzzz"):  # in slots 2, 1 and 0
        scheduler.add(prompt(name, name))
    while scheduler.unfinished():
        scheduler.complete(scheduler.schedule())
    taken = prompt("asked", asked)
    scheduler.add(taken)
    scheduler.schedule()
    assert [each is taken for each in scheduler.slots].index(True) == slot
    assert taken.cached_tokens == min(BLOCK * cached, taken.prompt_tokens - 1)


@pytest.mark.parametrize(("prompts", "budget", "lacks"), [(2, 64, 0), (2, 32, BUDGET), (4, 128, SLOTS), (4, 48, SLOTS)])
def test_what_kept_the_rest_out_is_said(prompts, budget, lacks):
    scheduler = LlamaCppScheduler(replace(CONFIG, max_num_batched_tokens=budget))
    for name in range(prompts):
        scheduler.add(Request(str(name), 0.0, 32, 1))
    assert scheduler.schedule().short_of == lacks
