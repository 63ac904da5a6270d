"""Every ablation leaves a formula that counts the work of an iteration; what it replaces is back afterwards."""

import pytest

from sim.cost.batch import mixed_batch
from sim.cost.coefficients import coefficients
from sim.cost.work import iteration_work
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.specs.precision import Precision
from studies.ablate import Ablation, ablations, applied

GPU = get_gpu("H100")
SERVED = (get_model("Llama-3.1-8B"), 1), (get_model("Qwen3-Coder-30B-A3B"), 2)  # dense on one GPU; experts over two


def work():
    prompts = 300, 4000  # within the graphs of an engine, and beyond
    shapes = [(model, mixed_batch(model, [2048.0] * 8, [(n, n, 1)]), tp) for model, tp in SERVED for n in prompts]
    return [iteration_work(model, shape, Precision(), tp=tp, gpu=GPU) for model, shape, tp in shapes]


@pytest.mark.parametrize("ablation", ablations(), ids=lambda each: each.name)
def test_it_counts_work(ablation: Ablation) -> None:
    coefficients.cache_clear()
    full = work()
    with applied(ablation):
        less = work()
    assert (less != full) == bool(ablation.patches)
    assert work() == full
