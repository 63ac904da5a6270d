"""LoRA adapters: their parameters are counted over the projections, they take memory, and an iteration reads those in use."""

import pytest

from sim.cost.batch import decode_batch, mixed_batch
from sim.cost.lora_work import KERNELS_PER_ADAPTER, KERNELS_PER_PROJECTION
from sim.cost.work import iteration_work
from sim.specs.lora import Lora
from sim.specs.models import get_model
from sim.specs.precision import Precision
from sim.study.deployment import Deployment, plan_engine
from tests.cli import run

MODEL = get_model("Llama-3.1-8B")


def test_parameters_by_hand():
    """Llama 3.1 8B: q, o 4096 x 4096, k, v 4096 x 1024, gate, up, down 4096 x 14336; 32 layers. PEFT prints 41,943,040 at r = 16."""
    assert Lora(16).params(MODEL) == 41_943_040


def test_an_iteration_reads_adapters_in_use_and_all_at_last():
    def adapter_bytes(batch, lora):
        shape = decode_batch(MODEL, float(batch), 100.0)
        return iteration_work(MODEL, shape, Precision(), lora=lora).linear_bytes - iteration_work(MODEL, shape, Precision()).linear_bytes

    one = Lora(64).params(MODEL) * 2.0
    assert adapter_bytes(1, Lora(64, 8)) == pytest.approx(one)
    assert adapter_bytes(1, Lora(64, 8, 0.5)) == pytest.approx(one / 2)
    assert adapter_bytes(512, Lora(64, 8)) == pytest.approx(8 * one)


def test_each_adapter_in_use_takes_kernels_of_its_own():
    def kernels(batch, lora):
        shape = decode_batch(MODEL, float(batch), 100.0)
        return iteration_work(MODEL, shape, Precision(), lora=lora).kernels - iteration_work(MODEL, shape, Precision()).kernels

    of_all, of_each = KERNELS_PER_PROJECTION * 4 * MODEL.layers, KERNELS_PER_ADAPTER * 4 * MODEL.layers
    assert kernels(1, Lora(16, 8)) == pytest.approx(of_all + of_each)
    assert kernels(1, Lora(16, 8, 0.5)) == pytest.approx(of_all + of_each / 2)
    assert kernels(512, Lora(16, 8)) == pytest.approx(of_all + 8 * of_each)


def test_a_prompt_beside_adapters_takes_more_to_launch_and_more_memory_time_by_the_share_that_uses_one():
    def difference(field, share):
        shape = mixed_batch(MODEL, [], [(700, 700, 1)])
        with_one = iteration_work(MODEL, shape, Precision(), lora=Lora(16, 4, share))
        return getattr(with_one, field) - getattr(iteration_work(MODEL, shape, Precision()), field)

    assert difference("launch_layers", 0.5) == difference("launch_layers", 1.0) > 0.5 * MODEL.layers
    assert difference("activation_bytes", 1.0) == pytest.approx(2.0 * difference("activation_bytes", 0.5))


def test_adapters_take_kv_blocks():
    blocks = [plan_engine(Deployment.of("Llama-3.1-8B", "H100", lora=lora))[0].num_gpu_blocks for lora in (None, Lora(64, 8))]
    block_bytes = 16 * 131_072
    assert blocks[0] - blocks[1] == pytest.approx(8 * Lora(64).params(MODEL) * 2 / block_bytes, abs=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--engine-option", "max-loras=4"), "max-loras needs enable-lora"),
        (("--engine-option", "enable-lora", "--engine-option", "max-lora-rank=17"), "max-lora-rank must be one of"),
        (("--engine-option", "enable-lora", "--model", "DeepSeek-V3", "--tp", "8"), "adapters of mla layers"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(options, words):
    code, _, err = run("simulate", "--gpu", "H200", "--num-prompts", "2", "--draws", "0", *options)
    assert (code, err.count("\n")) == (2, 1)
    assert words in err
