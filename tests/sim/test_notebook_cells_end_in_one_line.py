"""What a notebook cell may end in: one line of at most 200 characters as text, a small table as HTML; wrong arguments are one sentence."""

import pytest

from sim import (
    Deployment,
    Fleet,
    Plan,
    PoolSpec,
    RegimeMap,
    Simulate,
    UsageError,
    WhatIf,
    Workload,
    gemm_time,
    get_gpu,
    load_rates,
    plan,
    simulate,
    step_time,
)

CHAT = Deployment.of("Qwen3-8B", "H100", max_num_seqs=64)
LOAD = Workload.drawn(50, request_rate=4.0, output_len=20)
SLO = ("ttft:p99<2s",)
RUN = simulate(CHAT, LOAD, draws=2)
ENDS = (
    CHAT, LOAD, LOAD.trace, RUN, RUN.record, RUN.study, RUN.pools[0], Simulate(CHAT, LOAD), WhatIf(CHAT, 8192), WhatIf(CHAT, 8192).answer(),
    WhatIf(CHAT, 8192).serving(), RegimeMap(CHAT, 8), RegimeMap(CHAT, 8, draws=20).answer(), Fleet((PoolSpec(CHAT),)), get_gpu("H100"),
    Plan([CHAT], LOAD, SLO), plan([CHAT], LOAD, slo=SLO, quick=True, workers=1), load_rates(CHAT, draws=20),
)  # fmt: skip


@pytest.mark.parametrize("found", ENDS, ids=lambda found: type(found).__name__)
def test_a_cell_shows_a_line_and_a_table(found):
    line = repr(found)
    assert line.startswith(f"<{type(found).__name__} ")
    assert len(line) <= 200
    assert "\n" not in line
    html = found._repr_html_()
    assert html.startswith("<table><caption>")
    assert len(html) < 5000


def test_markup_in_a_name_is_text(tmp_path):
    (tmp_path / "card.yaml").write_text(
        "{name: '<b>x</b>', memory_bytes: 24e9, memory_bandwidth: 6e11, flops: {bf16: 1e14}, host_link_bandwidth: 2e10}"
    )
    assert "<b>" not in get_gpu(str(tmp_path / "card.yaml"))._repr_html_()


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (lambda: Deployment.of("Qwen3-8B", "H100", tp=3), "32 heads do not split over tensor-parallel size 3"),
        (lambda: Deployment.of("Qwen3-8B", "H100", max_num_seqs=0), "max_num_seqs must be at least 1"),
        (lambda: Deployment.of("Qwen3-8B", "H100", tp=2, tensor_parallel_size=4), "tp is given twice"),
        (lambda: WhatIf(CHAT, -5), "are 1 or more, got -5"),
        (lambda: WhatIf(CHAT, "8K"), "context is a number of tokens"),
        (lambda: WhatIf(CHAT, 8192, batches=4), "batches are a tuple"),
        (lambda: step_time(CHAT, chunks=(512, 2048)), "chunks are pairs"),
        (lambda: step_time(CHAT), "both are empty"),
        (lambda: gemm_time("H100", k=0, n=8, rows=1), "at least 1"),
        (lambda: Workload.drawn(5, max_concurrency=0), "clients in flight must be at least 1"),
        (lambda: Simulate(CHAT, LOAD, draws=-1), "draws cannot be -1"),
    ],
)
def test_wrong_arguments_are_one_sentence(ask, why):
    with pytest.raises(UsageError) as error:
        ask()
    assert why in str(error.value)
    assert "\n" not in str(error.value)


def test_settings_go_by_the_names_of_engines():
    theirs = {"tensor_parallel_size": 2, "kv_cache_dtype": "fp8", "mem_fraction_static": 0.8, "disable_radix_cache": True}
    ours = {"tp": 2, "kv_dtype": "fp8", "gpu_memory_utilization": 0.8, "enable_prefix_caching": False}
    assert Deployment.of("Qwen3-8B", "H100", **theirs) == Deployment.of("Qwen3-8B", "H100", **ours)
    staged = Deployment.of("Qwen3-8B", "H100", pipeline_parallel_size=2)
    assert staged.gpus == 2
