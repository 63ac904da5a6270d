"""Every ablation leaves a formula that counts the work of an iteration; what it replaces is back afterwards."""

import pytest

from calibrate.served.replay import replay
from sim.cost.batch import mixed_batch
from sim.cost.coefficients import coefficients
from sim.cost.work import iteration_work
from sim.rates.serving import HostRates
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.specs.precision import Precision
from studies.ablate import Ablation, ablations, applied
from studies.ablate_api_server import without_queue
from tests.served.made_runs import IN_PROCESS, RUN, open_loop

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


def test_without_the_queue_tokens_pile_up_no_more_and_lone_ones_are_sent_alike() -> None:
    host = HostRates(0.0, 0.0, 0.0, 0.0, token_s=2e-3)
    loads = [open_loop("load", *each, 0) for each in ((0.2, 5), (60.0, 60))]

    def e2el_s() -> list[float]:
        return [float(replay(RUN, load, IN_PROCESS, host).e2el_s.mean()) for load in loads]

    alone, crowd = e2el_s()
    with without_queue():
        alone_without, crowd_without = e2el_s()
    assert alone_without == alone
    assert crowd_without < 0.9 * crowd
    assert e2el_s() == [alone, crowd]
