"""A model, family, dtype or TP degree that was not measured on a GPU: a wider interval about the same median, and a word in the answer."""

import numpy as np
import pytest

from sim import Deployment, load_rates
from sim.cost.batch import decode_batch
from sim.cost.step_time import step_time_s
from sim.rates.load import scope_notes
from sim.rates.posterior import rates_for
from tests.cli import run

MEASURED = Deployment.of("Llama-3.1-8B", "H100")


def width(d, rates):
    """Log width of the 90 % interval of a decode step."""
    drawn = step_time_s(d.work(decode_batch(d.model, 8.0, 2048.0, xp=np)), rates.draws, np)
    low, high = np.percentile(drawn, (5, 95))
    return float(np.log(high / low))


def widening(**given):
    """How much wider it is than the rates of the GPU alone."""
    d = Deployment.of(**{"model": "Llama-3.1-8B", "gpu": "H200"} | given)
    alone, whole = rates_for(d.gpu, d.precision, draws=400, tp=d.tp), load_rates(d, draws=400)
    assert whole.point == alone.point
    return width(d, whole) / width(d, alone)


def test_each_step_away_from_what_was_measured_widens():
    assert widening() == 1.0
    assert widening(tp=2) == 1.0  # grids over two are packaged
    model, family = widening(model="Qwen2.5-32B"), widening(model="Gemma-3-12B")
    assert 1.1 < model < family
    assert widening(dtype="fp8") > 1.3
    assert widening(tp=4) > 1.05


def test_where_the_gpu_was_not_measured_the_hierarchy_is_wide_already():
    assert widening(gpu="L40S", model="Gemma-3-12B") == 1.0


def test_the_same_model_with_a_longer_context_was_measured():
    assert not any("model" in note for note in scope_notes(*known(Deployment.of("Qwen2.5-7B-1M", "H100"))))
    assert not any("outside" in note for note in scope_notes(*known(MEASURED)))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"model": "Gemma-3-12B"}, "model Gemma-3-12B (measured: llama3.1-8b, qwen2.5-7b, qwen3-14b, qwen3-coder-30b-a3b)"),
        ({"model": "Llama-3.1-8B", "dtype": "fp8"}, "dtype fp8 (measured: bf16)"),
        ({"model": "Llama-3.1-8B", "tp": 4}, "tp 4 (measured: 1, 2)"),
    ],
)
def test_the_answer_names_what_is_carried_over(given, says):
    assert any(says in note for note in scope_notes(*known(Deployment.of(gpu="H100", **given))))


def known(d):
    return d, load_rates(d, draws=4)


def test_simulate_says_it_in_its_answer():
    said = run("simulate", "--gpu", "H200", "--model", "Mistral-Small-24B", "--num-prompts", "8", "--draws", "0").stdout
    assert "model Mistral-Small-24B (measured:" in " ".join(said.split())
