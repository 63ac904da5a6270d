"""Every ablation leaves a formula that counts the work of an iteration; what it replaces is back afterwards."""

import pytest

from sim.cost.batch import mixed_batch
from sim.cost.work import coefficients, iteration_work
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.specs.precision import Precision
from studies.ablate import Ablation, ablations, applied

MODEL, GPU = get_model("Llama-3.1-8B"), get_gpu("H100")
SHAPE = mixed_batch(MODEL, [2048.0] * 8, [(300, 300, 1)])


def work():
    return iteration_work(MODEL, SHAPE, Precision(), gpu=GPU)


@pytest.mark.parametrize("ablation", ablations(), ids=lambda each: each.name)
def test_it_counts_work(ablation: Ablation) -> None:
    coefficients.cache_clear()
    full = work()
    with applied(ablation):
        less = work()
    assert (less != full) == bool(ablation.patches)
    assert work() == full
