"""With draws asked for, what the iteration log tells has intervals too: of run noise, and of the rates over the same workload."""

import json

import xarray as xr

from sim.results.tables import benchmark_table
from tests.cli import run

ARGV = ("simulate", "--gpu", "H100", "--model", "Qwen2.5-7B", "--num-prompts", "40", "--request-rate", "10", "--random-output-len", "40")


def test_all_latencies_and_the_engines_figures_have_both_kinds_and_a_draw_dimension(tmp_path):
    done = run(*ARGV, "--draws", "6", "--out", str(tmp_path / "o"))
    assert done.code == 0
    summary = json.loads((tmp_path / "o" / "summary.json").read_text())
    for name in ("mean_ttft_ms", "p99_tpot_ms", "p99_itl_ms", "median_e2el_ms", "iterations", "mean_running", "max_output_tokens_per_s"):
        for kind in ("run_noise_90", "rates_90"):
            low, high = summary[kind][name]
            assert low <= high
    with xr.open_dataset(tmp_path / "o" / "run.nc") as opened:
        assert opened.sizes["draw"] == 6
        assert {"p99_itl_ms", "iterations"} <= set(opened["draw_figure"].values.astype(str))
    line = next(text for text in done.stdout.splitlines() if text.startswith("P99 ITL"))
    assert line.count("[") == 2


def test_the_draws_that_keep_a_log_have_the_figures_of_those_that_do_not(tmp_path):
    logged, short = (json.loads(run(*ARGV, "--draws", "4", flag, "--json").stdout) for flag in ("--iterations", "--no-iterations"))
    assert "p99_itl_ms" not in short["rates_90"]
    for name, interval in short["rates_90"].items():
        assert logged["rates_90"][name] == interval
    for name, interval in short["run_noise_90"].items():
        assert logged["run_noise_90"][name] == interval


def test_figures_in_per_cent_carry_their_intervals_in_per_cent():
    summary = {"prefix_cache_hit_rate": 0.5, "busy_fraction": 0.25, "max_kv_blocks_used": 20}
    text = benchmark_table(summary, {"prefix_cache_hit_rate": (0.4, 0.6), "max_kv_blocks_used": (10.0, 30.0)}, None, 100)
    rows = {line.split(":")[0]: line for line in text.splitlines()}
    assert rows["Prefix cache hit rate (%)"].endswith("50.00      [40-60]")
    assert rows["Peak KV use (%)"].endswith("20.00      [10-30]")
    assert rows["Busy time (%)"].endswith("25.00")


def test_every_figure_lies_in_its_intervals():
    """The run shown is one of the repeats that its interval tells of."""
    for seed in ("0", "1", "2"):
        found = json.loads(run(*ARGV, "--seed", seed, "--no-iterations", "--json").stdout)
        for kind in ("run_noise_90", "rates_90"):
            assert found[kind]
            for name, (low, high) in found[kind].items():
                assert low <= found[name] <= high, (seed, kind, name)


def test_rounding_puts_no_figure_outside_its_interval():
    interval = {"mean_ttft_ms": (76.351, 86.4), "median_ttft_ms": (8.1, 9.0042), "p99_ttft_ms": (1234.56, 1300.0)}
    text = benchmark_table({"mean_ttft_ms": 76.351, "median_ttft_ms": 9.0042, "p99_ttft_ms": 1234.56}, interval, whole=False)
    assert "[76.3-86.4]" in text
    assert "[8.1-9.01]" in text
    assert "[1230-1300]" in text
