"""A card of a measured chip inherits that chip's rates, scaled by the datasheets: never faster with less, never surer."""

import numpy as np
import pytest

from sim import Deployment, get_gpu, list_gpus, load_rates
from sim.cost.batch import decode_batch, mixed_batch
from sim.engine.step_clock import step_time_s
from sim.rates.load import scope_notes
from sim.specs.gpus import load_gpus

MODEL = "Llama-3.1-8B"
SIBLINGS = [name for name in list_gpus() if get_gpu(name).sibling_of]
RATES = ("memory_bandwidth", "host_link_bandwidth")


def seconds(gpu, shape):
    """Step time at the point and its relative 90 % width."""
    d = Deployment.of(MODEL, gpu)
    rates, work = load_rates(d, draws=4000), d.work(shape(d.model))
    point, drawn = step_time_s(work, rates.point, np), step_time_s(work, rates.draws, np)
    low, high = np.percentile(drawn, (5, 95))
    return float(point), float(np.log(high / low))


SHAPES = {
    "decode": lambda model: decode_batch(model, 8.0, 2048.0, xp=np),
    "prefill": lambda model: mixed_batch(model, (), [(2048.0, 2048.0, 1.0)]),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("name", SIBLINGS)
def test_it_is_slower_with_less_and_never_surer(name, shape):
    gpu = get_gpu(name)
    (mine, width), (theirs, its_width) = seconds(gpu, shape), seconds(get_gpu(gpu.sibling_of), shape)
    kin = get_gpu(gpu.sibling_of)
    ratios = [getattr(gpu, field) / getattr(kin, field) for field in RATES] + [gpu.flops["bf16"] / kin.flops["bf16"]]
    if max(ratios) <= 1.0:
        assert mine >= theirs
    if min(ratios) >= 1.0:
        assert mine <= theirs
    assert width >= 0.98 * its_width  # both by 4,000 draws


@pytest.mark.parametrize("name", SIBLINGS)
def test_the_answer_names_the_chip_and_says_that_the_card_was_not_measured(name):
    d = Deployment.of(MODEL, name)
    rates = load_rates(d, draws=4)
    assert f"scaled from {get_gpu(name).sibling_of}, the same chip" in rates.summary
    assert any(f"GPU {name}" in note for note in scope_notes(d, rates))


def test_a_users_own_datasheet_may_name_its_chip(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: H100-NVL\nsibling_of: H100\nmemory_bytes: 94e9\nmemory_bandwidth: 3.9e12\nhost_link_bandwidth: 63e9\nflops: {bf16: 835e12}\n"
    )
    (gpu,) = load_gpus(path)
    assert "scaled from H100" in load_rates(Deployment.of(MODEL, gpu), draws=4).summary


@pytest.mark.parametrize("name", ["MI300X", "MI325X"])
def test_amd_cards_say_that_none_was_measured(name):
    d = Deployment.of(MODEL, name)
    assert any("AMD" in note for note in scope_notes(d, load_rates(d, draws=4)))
