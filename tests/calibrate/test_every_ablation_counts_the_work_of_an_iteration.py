"""Every ablation leaves a formula that counts the work of an iteration; what it replaces is back afterwards. No term is without one."""

import re
import sys

import numpy as np
import pytest

from calibrate.served.replay import replay
from sim.cost.batch import mixed_batch
from sim.cost.coefficients import coefficients
from sim.cost.terms_left_out import terms
from sim.cost.work import iteration_work
from sim.files import package_path
from sim.rates.fingerprint import priced
from sim.rates.serving import HostRates
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model
from sim.specs.precision import Precision
from studies.ablate import Ablation, ablations, applied
from studies.ablate_api_server import without_queue
from tests.served.made_runs import IN_PROCESS, RUN, open_loop
from tests.sim.test_formula_fingerprint_sees_meaning_not_text import constants

GPU = get_gpu("H100")
# What an engine, a kernel or a table is like, and tokens, sizes and rates that a term's constant goes with
FACTS = {
    "all_reduce.LARGE_BYTES",
    "attention.BLOCKS_AT_ONCE",
    "attention.HOPPER_8_BIT_ELEMENTS_PER_S",
    "attention.LATENT_ROWS",
    "decode_step.FIRST_CONTEXT",
    "decode_step.FORMULA_SUMMARY_BYTES",
    "gemm.SIMILAR_LOG_SIZE",
    "gemm.TILE",
    "gemm_surface.KERNEL_BYTES",
    "graphs.CAPTURED",
    "graphs.GRAPH_TOKENS",
}
SERVED = (get_model("Llama-3.1-8B"), 1), (get_model("Qwen3-Coder-30B-A3B"), 2)  # dense on one GPU; experts over two


def defined_in(name: str) -> list[str]:
    """Modules of sim.cost whose source sets a constant."""
    found = [
        path for path in package_path("sim", "cost").glob("*.py") if re.search(rf"^[A-Z_0-9, ]*\b{name}\b.*= ", path.read_text(), re.M)
    ]
    return [path.stem for path in found]


def work():
    prompts = 300, 4000  # within the graphs of an engine, and beyond
    shapes = [(model, mixed_batch(model, [2048.0] * 8, [(n, n, 1)]), tp) for model, tp in SERVED for n in prompts]
    return [iteration_work(model, shape, Precision(), tp=tp, gpu=GPU) for model, shape, tp in shapes]


@pytest.mark.parametrize("ablation", [each for each in ablations() if each.constants or each.patches], ids=lambda each: each.name)
def test_it_leaves_out_something_and_puts_it_back(ablation: Ablation) -> None:
    coefficients.cache_clear()
    full, probes = work(), list(priced())
    with applied(ablation):
        less, without = work(), list(priced())
    assert all(np.isfinite(value) for each in less for value in each)
    assert less != full or without != probes
    assert (work(), list(priced())) == (full, probes)


def test_every_constant_of_the_formula_is_a_terms_or_a_fact() -> None:
    held = {f"{module}.{name}" for term in terms() for module, name, _ in term.constants}
    named = {
        f"{module.removeprefix('sim.cost.')}.{name}" for module, name, _ in constants() if getattr(sys.modules[module], name) is not None
    }
    own = {each for each in named if each.split(".")[0] in defined_in(each.split(".")[1])}
    assert own - held == FACTS
    assert held <= own


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
