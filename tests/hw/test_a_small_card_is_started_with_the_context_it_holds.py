"""An engine to be measured starts with the longest context that its card holds, and its card has a name without nvidia-smi, too."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from hw import machine
from hw.engines.shapes import CONTEXT, fitting_context, longest_context, shape
from sim import Deployment
from sim.errors import SimctlError
from sim.study.deployment import Limits, plan_engine

LIMITS = (256, 8192)  # what `simctl measure` starts with


@pytest.mark.parametrize(("model", "gigabytes"), [("llama3.1-8b", 24), ("qwen2.5-7b", 24), ("qwen3-8b", 24), ("mistral-7b", 22.5)])
def test_24_gb_hold_less_than_131072_tokens(model, gigabytes):
    found = fitting_context(shape(model), gigabytes * 1e9, 1, *LIMITS)
    assert 1024 < found <= CONTEXT
    # what it starts with fits by the same prediction that simulations use
    limits = Limits(max_num_seqs=256, max_num_batched_tokens=8192, gpu_memory_utilization=0.9, max_model_len="auto")
    there = replace(Deployment.of(model, "RTX4090"), limits=limits)
    there = replace(there, gpu=replace(there.gpu, memory_bytes=gigabytes * 1e9))
    assert found <= plan_engine(there)[0].max_model_len


def test_large_cards_keep_the_whole_context():
    for model in ("llama3.1-8b", "qwen2.5-7b", "qwen3-14b"):
        assert fitting_context(shape(model), 85.0e9, 1, *LIMITS) == longest_context(shape(model)) == CONTEXT


def test_weights_that_do_not_fit_are_one_line():
    with pytest.raises(SimctlError, match="fit") as refused:
        fitting_context(shape("llama3.1-70b"), 24e9, 1, *LIMITS)
    assert "\n" not in str(refused.value)


def test_a_gpu_without_nvidia_smi_has_torchs_name(monkeypatch):
    cuda = SimpleNamespace(get_device_name=lambda index: "NVIDIA GeForce RTX 4090", device_count=lambda: 1)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, version=SimpleNamespace(cuda="13.0")))
    monkeypatch.setattr(machine.shutil, "which", lambda name: None)
    facts = machine.provenance("cuda")
    assert facts["gpu_name"] == "NVIDIA GeForce RTX 4090"
