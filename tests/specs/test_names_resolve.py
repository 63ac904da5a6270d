"""Names are read as people and drivers write them; an unknown one is an error that suggests and lists, never another card."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.errors import UsageError
from sim.specs.gpus import get_gpu, list_gpus
from sim.specs.lookup import build_index, key
from sim.specs.models import get_model, list_models, model_aliases

# what nvidia-smi (rocm-smi) prints, beside what people type
GPU_SPELLINGS = {
    "H100": ["h100", "H100", "h100_sxm", "H100-SXM5", "NVIDIA H100 80GB HBM3", "nvidia h100"],
    "H100-PCIe": ["NVIDIA H100 PCIe", "h100_pcie"],
    "H200": ["NVIDIA H200", "h200"],
    "A100-40G": ["A100-40", "NVIDIA A100-SXM4-40GB", "a100 40gb"],
    "A100-80G": ["A100-80", "NVIDIA A100-SXM4-80GB", "A100-80GB", "a100_80g"],
    "A10": ["NVIDIA A10", "a10"],
    "A10G": ["NVIDIA A10G"],
    "T4": ["Tesla T4"],
    "V100": ["Tesla V100-SXM2-16GB", "v100"],
    "RTX-3060": ["NVIDIA GeForce RTX 3060", "RTX 3060-12G", "3060"],
    "RTX-4090": ["NVIDIA GeForce RTX 4090", "rtx4090", "4090"],
    "RTX-PRO-6000": ["NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000"],
    "H100-NVL": ["NVIDIA H100 NVL", "h100-nvl"],
    "H800": ["NVIDIA H800"],
    "A800-80G": ["NVIDIA A800-SXM4-80GB", "a800"],
    "RTX-6000-Ada": ["NVIDIA RTX 6000 Ada Generation"],
    "RTX-5000-Ada": ["NVIDIA RTX 5000 Ada Generation"],
    "L20": ["NVIDIA L20"],
    "RTX-4070": ["NVIDIA GeForce RTX 4070"],
    "RTX-4070-Ti-Super": ["NVIDIA GeForce RTX 4070 Ti SUPER"],
    "RTX-4080-Super": ["NVIDIA GeForce RTX 4080 SUPER"],
    "RTX-5070-Ti": ["NVIDIA GeForce RTX 5070 Ti"],
    "RTX-5080": ["NVIDIA GeForce RTX 5080"],
    "RTX-2080-Ti": ["NVIDIA GeForce RTX 2080 Ti"],
    "RTX-PRO-6000-Max-Q": ["NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"],
    "RTX-PRO-5000": ["NVIDIA RTX PRO 5000 Blackwell"],
    "RTX-PRO-4500": ["NVIDIA RTX PRO 4500 Blackwell"],
    "MI355X": ["AMD Instinct MI355X"],
    "MI308X": ["AMD Instinct MI308X"],
    "Gaudi-3": ["Intel Gaudi 3"],
    "TPU-v6e": ["v6e"],
    "M4-Max-128G": ["Apple M4 Max"],
    "GB10": ["NVIDIA GB10", "dgx spark"],
    "RTX-3090-Ti": ["NVIDIA GeForce RTX 3090 Ti", "3090 Ti"],
    "RTX-A5000": ["NVIDIA RTX A5000"],
    "RTX-4090-48G": ["RTX 4090 48GB"],
    "H20-141G": ["NVIDIA H20-3e", "H20 141G"],
    "Jetson-Thor": ["NVIDIA Jetson AGX Thor"],
    "Strix-Halo-128G": ["strix halo", "AMD RYZEN AI MAX+ 395", "Radeon 8060S"],
    "M3-Max-128G": ["Apple M3 Max"],
    "Arc-Pro-B60": ["Intel Arc Pro B60"],
    "MI300X": ["AMD Instinct MI300X", "mi300x"],
}
MODEL_SPELLINGS = {
    "Qwen2.5-7B-1M": ["Qwen/Qwen2.5-7B-Instruct-1M", "qwen2.5-7b-instruct-1m", "QWEN2.5_7B_1M"],
    "Qwen2.5-7B": ["Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"],
    "Llama-3.1-8B": ["meta-llama/Llama-3.1-8B-Instruct", "llama3.1-8b", "Meta-Llama-3.1-8B"],
    "Gemma-3-4B": ["google/gemma-3-4b-it", "gemma3-4b"],
    "Qwen3.6-27B": ["q36-27b", "q36-27b-nvfp4"],
    "DeepSeek-V3": ["deepseek-ai/DeepSeek-R1"],
}


@pytest.mark.parametrize(("name", "spelling"), [(name, s) for name, spellings in GPU_SPELLINGS.items() for s in spellings])
def test_gpu_spellings(name, spelling):
    assert get_gpu(spelling).name == name


@pytest.mark.parametrize(("name", "spelling"), [(name, s) for name, spellings in MODEL_SPELLINGS.items() for s in spellings])
def test_model_spellings(name, spelling):
    assert get_model(spelling).name == name


def test_every_name_and_alias_finds_its_own():
    for name in list_gpus():
        assert {get_gpu(alias).name for alias in (name, *get_gpu(name).aliases)} == {name}
    for name in list_models():
        assert {get_model(alias).name for alias in (name, *model_aliases(name))} == {name}


@pytest.mark.parametrize(("name", "suggested"), [("NVIDIA H100 SXM9", "H100"), ("RTX 4090 D", "RTX-4090"), ("A100 SXM6 80GB HBM", "A100")])
def test_a_shared_number_is_suggested_before_a_like_spelling(name, suggested):
    with pytest.raises(UsageError, match=rf"did you mean '{suggested}"):
        get_gpu(name)


@pytest.mark.parametrize(
    "name", ["NVIDIA GeForce RTX 3080 Ti", "Quadro RTX 6000", "AMD Instinct MI250X", "Tesla P100", "NVIDIA A2", "TITAN RTX"]
)
def test_other_silicon_is_not_suggested(name):
    with pytest.raises(UsageError, match=r"'; known: "):
        get_gpu(name)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", "a MIG slice is a share of a card"),
        ("Apple M5", "Apple publishes no rate of M5's matrix units"),
        ("Intel Arc Pro B70", "no datasheet of it is recorded here"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "a laptop GPU has other silicon"),
    ],
)
def test_parts_of_cards_and_laptops_are_none_of_them(name, why):
    with pytest.raises(UsageError, match=why):
        get_gpu(name)


def test_near_miss_is_suggested():
    with pytest.raises(UsageError, match=r"^unknown GPU 'A1O'; did you mean 'A10'\? known: H100, .*MI300X"):
        get_gpu("A1O")
    with pytest.raises(
        UsageError, match=r"^unknown model 'Qwen2.5-7C'; did you mean 'Qwen2.5-7B' or 'Qwen2.5-72B'\? `simctl models` lists "
    ):
        get_model("Qwen2.5-7C")


@pytest.mark.parametrize("name", ["", " ", "-", "Z", "a\0b", "x" * 5000, "/" + "y" * 300, "org/" + "z" * 300])
def test_nonsense_is_a_usage_error(name):
    for find in (get_gpu, get_model):
        with pytest.raises(UsageError):
            find(name)


def test_a_name_that_means_several_cards_is_refused():
    for name in ("A100", "nvidia a100"):
        with pytest.raises(UsageError, match=r"ambiguous GPU .* A100-40G, A100-80G"):
            get_gpu(name)


def test_two_entries_cannot_share_a_name():
    with pytest.raises(ValueError, match="means both 'one' and 'two'"):
        build_index([("one", ["x-1"]), ("two", ["X1"])])


@given(st.text())
def test_keys_ignore_case_and_separators(text):
    assert key(text) == key(key(text))
    assert key(" " + text.upper().casefold() + "-_") == key(text.upper().casefold())


@given(st.text(min_size=1))
def test_any_text_finds_a_gpu_or_is_refused(text):
    try:
        spec = get_gpu(text)
    except UsageError:
        return
    assert spec.name in list_gpus()
