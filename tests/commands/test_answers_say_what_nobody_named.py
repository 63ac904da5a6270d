"""Links between GPUs that nobody named, engine versions that nobody measured, relatives of a card: said first, and wider."""

import numpy as np
import pytest

from sim import load_rates
from sim.engine.overlap import HostWork
from sim.engine.versions import NEWEST
from sim.rates.assumed import assumed, with_older
from sim.rates.load import OWNERS_SD
from sim.rates.posterior import SIBLING_SD
from sim.rates.source import RateSource
from sim.specs.models import get_model
from sim.specs.precision import Precision
from sim.specs.topology import Topology
from sim.study.deployment import Deployment
from simctl.text.heading import dtype_words, grounds
from tests.cli import run

SHORT = ("simulate", "--num-prompts", "2", "--draws", "0", "--no-iterations", "--max-concurrency", "1")
RELATIVES = [("H20", "H200"), ("H800", "H100"), ("H100-NVL", "H100"), ("H100-PCIe", "H100"), ("GH200", "H100")]


def sentences(model, gpu, tp, **more):
    d = Deployment.of(model, gpu, tp=tp, **more)
    return assumed(d, load_rates(d, draws=2))


def spread(draws):
    return float(np.std(np.log(draws)))


def test_cards_without_direct_links_say_both_ways():
    (said,) = sentences("Qwen2.5-7B", "RTX-4090", 2)
    assert "no peer access" in said
    assert "over PCIe with it" in said
    assert float(said.split("(")[1].split("x")[0]) < 1.0


def test_replicas_beyond_a_node_say_both_ways():
    (said,) = sentences("DeepSeek-V3", "H100", 16, dtype="fp8")
    assert "2 nodes" in said
    assert "within one node" in said
    assert float(said.split("(")[1].split("x")[0]) < 0.7


@pytest.mark.parametrize(("gpu", "tp"), [("H100", 1), ("H100", 8), ("RTX-4090", 1)])
def test_nothing_is_said_where_nothing_is_open(gpu, tp):
    assert sentences("Qwen2.5-7B" if tp == 1 else "Llama-3.1-70B", gpu, tp) == []


def test_a_topology_that_is_given_is_not_asked_after():
    assert sentences("Qwen2.5-7B", "RTX-4090", 2, topology=Topology(2, 1, True, source="mine.yaml")) == []


@pytest.mark.parametrize(("asked", "said"), [((), True), (("--engine-version", "0.23"), False), (("--engine", "sglang"), False)])
def test_a_version_that_nobody_said_is_named_with_the_option_that_says_it(asked, said):
    out = " ".join(run(*SHORT, "--model", "Llama-3.1-8B", "--gpu", "H100", *asked).stdout.split())
    assert (f"; {NEWEST} is answered (--engine-version). 0.11 takes " in out) == said


def test_an_older_version_shows_its_host_work_and_keeps_less_kv():
    host = HostWork(1e-3, 1e-5)
    d = Deployment.of("gpt-oss-120b", "H100", gpu_memory_utilization=0.95, max_num_batched_tokens=1024)
    words = with_older(d, load_rates(d, draws=2), host).split()
    there, here, left, kept = (float(words[i]) for i in (2, 5, -5, -2))
    assert there - here == pytest.approx(1.16, abs=0.1)
    assert left < 3 < kept


def test_a_version_that_nobody_measured_is_in_the_first_lines():
    out = run(*SHORT, "--model", "Llama-3.1-8B", "--gpu", "H100", "--engine-version", "0.11").stdout
    assert "vllm 0.11 was measured nowhere" in " ".join(out.split())


@pytest.mark.parametrize(("gpu", "measured"), RELATIVES)
def test_a_relative_of_a_measured_card_says_which(gpu, measured):
    d = Deployment.of("Llama-3.1-8B", gpu)
    assert grounds(d, load_rates(d, draws=2)) == f"{gpu} was not measured here; rates of the measured {measured}, scaled by datasheets"


def test_a_relative_is_wider_the_farther_its_datasheet_lies():
    near, far = (load_rates(Deployment.of("Llama-3.1-8B", gpu), draws=2000).draws.linear_flops_per_s for gpu in ("H800", "H20"))
    assert SIBLING_SD < spread(near) < 0.15 < spread(far)


def test_another_owners_machine_is_wider_than_a_host_that_is_known():
    d = Deployment.of("Llama-3.1-8B", "H100")
    (anywhere, _), (here, _) = (RateSource(host_scale=host).of(d, 2000) for host in (None, 1.0))
    wide, narrow = (spread(rates.draws.beta) for rates in (anywhere, here))
    assert wide == pytest.approx(np.hypot(narrow, OWNERS_SD * np.sqrt(5 / 3)), rel=0.1)  # five degrees of freedom
    assert anywhere.point.beta == here.point.beta


def test_experts_in_mxfp4_are_named_so():
    assert dtype_words(get_model("gpt-oss-20b"), Precision()) == "mxfp4 experts, the rest bf16"
    assert dtype_words(get_model("Qwen2.5-7B"), Precision("fp8")) == "fp8"
