"""A fleet's answer shows its replicas, its router's decisions and its long tail side by side, and they add up to the run."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sim.cluster.replica import SteppedEngine
from sim.cluster.router import ROUTERS, make_router
from sim.cluster.simulation import simulate
from sim.engine.config import EngineConfig
from sim.engine.registry import make_scheduler
from sim.results.fleet_tables import LONG_S, fleet_tables
from sim.results.metrics import request_latencies_ms
from sim.results.record import ITERATION_COLUMNS, REQUEST_FLOATS, REQUEST_INTS, RunRecord
from sim.workload.sources import TraceSource
from simctl.text.fleet_text import fleet_lines
from tests.cli import run as command
from tests.runs import AffinePrice, calls, trace_of

REFERENCE = Path(__file__).parents[2] / "scenarios/data/reference/routing"
LOAD = (
    "simulate", "--gpu", "H100", "--model", "Llama-3.1-8B", "--num-prompts", "200", "--turns", "4", "--request-rate", "40",
    "--random-input-len", "3000", "--replicas", "3", "--draws", "0", "--router", "unified",
)  # fmt: skip


def made(replica, ttft_s, decision, cached=0, paid_s=(10.0, 10.0, 10.0)):
    """A record of requests sent at 0, each with a second of decode after its first token."""
    count, nothing = len(replica), np.empty(0)
    columns = {name: np.full(count, np.nan) for name in REQUEST_FLOATS} | {name: np.zeros(count, dtype=int) for name in REQUEST_INTS}
    columns |= {"arrival_s": np.zeros(count), "first_token_s": np.array(ttft_s), "finish_s": np.array(ttft_s) + 1.0}
    columns |= {"replica": np.array(replica), "decision": np.array(decision), "prompt_tokens": np.full(count, 100)}
    columns |= {"cached_tokens": np.full(count, cached), "generated_tokens": np.full(count, 2)}
    log = dict.fromkeys(ITERATION_COLUMNS, nothing)
    names = ("fallback", "affinity", "never")
    return RunRecord([""] * count, [None] * count, columns, log, (), np.empty((0, 0)), nothing, paid_s, decision_names=names)


def test_tables_by_hand():
    tables = fleet_tables(made([0, 0, 0, 1], [1.0, 3.0, 50.5, 5.5], [0, 1, 0, 1], cached=25))
    first, second, third = tables["replicas"]
    assert first == {"replica": 0, "requests": 3, "mean_ttft_ms": pytest.approx(54.5e3 / 3), "p90_ttft_ms": pytest.approx(41e3),
                     "prefix_cache_hit_rate": 0.25}  # fmt: skip
    assert (second["requests"], third["requests"]) == (1, 0)
    assert np.isnan(third["mean_ttft_ms"])
    assert [(row["decision"], row["requests"], row["mean_ttft_ms"]) for row in tables["decisions"]] == [
        ("affinity", 2, 4250.0),
        ("fallback", 2, 25750.0),
    ]
    assert tables["long_tail"] == {"5": 2, "10": 1, "20": 1, "30": 1, "50": 1, "100": 0}
    # 2 + 4 + 51.5 s in flight at one, 6.5 s at another, and nothing at the third
    assert tables["hotspot_index"] == pytest.approx(57.5 / (64.0 / 3))
    assert fleet_tables(made([0, 0, 0, 1], [1.0] * 4, [0] * 4), prefill=[2])["hotspot_index"] == pytest.approx(1.5)


def test_thresholds_are_those_of_the_published_study():
    with (REFERENCE / "long_tail_counts.csv").open() as file:
        assert {int(row["ttft_threshold_ms"]) for row in csv.DictReader(file)} == {1000 * seconds for seconds in LONG_S}
    with (REFERENCE / "decision_split.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {"n_requests", "ttft_mean_ms", "ttft_p90_ms", "ttft_p99_ms"} <= set(rows[0])
    assert {row["decision"].removeprefix("lmetric_") for row in rows} == {"affinity", "fallback"}


@settings(max_examples=60)
@given(calls, st.sampled_from(list(ROUTERS)), st.integers(1, 4))
def test_replicas_and_decisions_add_up(requests, router, replicas):
    config = EngineConfig(num_gpu_blocks=60, max_num_seqs=4, max_num_batched_tokens=64, max_model_len=400)
    engines = [SteppedEngine(make_scheduler(config), AffinePrice()) for _ in range(replicas)]
    record = simulate(TraceSource(trace_of(requests), 16), engines, router=make_router(router, replicas, 16, 60))
    tables, ttft = fleet_tables(record), request_latencies_ms(record)["ttft"]
    for table in (tables["replicas"], tables["decisions"]):
        assert sum(row["requests"] for row in table) == len(requests)
        assert np.nansum([row["requests"] * row["mean_ttft_ms"] for row in table]) == pytest.approx(ttft.sum())
    assert 1.0 <= tables["hotspot_index"] <= replicas + 1e-9
    busy_s = sum(row["busy_fraction"] * up_s for row, up_s in zip(tables["replicas"], record.paid_s, strict=True))
    assert busy_s == pytest.approx(record.iterations["duration_s"].sum())
    assert sum(row["prefill_tokens"] for row in tables["replicas"]) == record.iterations["prefill_tokens"].sum()
    assert max(row["max_waiting"] for row in tables["replicas"]) == record.iterations["waiting"].max()


def test_the_command_prints_them_in_80_columns_and_puts_them_into_the_summary(tmp_path):
    result = command(*LOAD, "--out", str(tmp_path / "run"))
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    at = next(i for i, line in enumerate(lines) if line.startswith("replica "))
    for row, line in zip(summary["replicas"], lines[at + 1 : at + 4], strict=True):
        cells = line.replace(",", "").split()
        assert cells[:2] == [str(row["replica"]), str(row["requests"])]
        assert float(cells[2]) == pytest.approx(row["mean_ttft_ms"], abs=0.05)
        assert float(cells[5]) == pytest.approx(100 * row["busy_fraction"], abs=0.05)
    assert [row["decision"] for row in summary["decisions"]] == ["affinity", "fallback"]
    assert sum(line.startswith(("affinity ", "fallback ")) for line in lines) == 2
    assert any(f"{summary['gpu_hours']:.3g} GPU-hours" in line for line in lines)
    assert summary["gpu_hours"] == pytest.approx(3 * summary["duration"] / 3600, rel=0.05)


def test_one_replica_has_no_tables_and_a_long_tail_only_where_there_is_one():
    short = command(*LOAD[:5], "--num-prompts", "20", "--request-rate", "2", "--draws", "0").stdout
    long = command(*LOAD[:5], "--num-prompts", "200", "--request-rate", "inf", "--random-input-len", "8000", "--draws", "0").stdout
    assert not any(line.startswith(("replica ", "decision ", "TTFT above", "hotspot")) for line in short.splitlines())
    assert [line[:15] for line in long.splitlines() if line.startswith("TTFT above")] == ["TTFT above 5 s:"]
    assert not any(line.startswith("replica ") for line in long.splitlines())


def test_without_an_iteration_log_the_engines_columns_are_missing():
    lines = command(*LOAD, "--no-iterations").stdout.splitlines()
    assert "replica  requests  mean TTFT  P90 (ms)  hits (%)" in lines


def test_a_large_fleet_shows_the_replicas_with_most_requests():
    replica = [*range(100), *[7] * 5, *[99] * 5]
    tables = fleet_tables(made(replica, [1.0] * len(replica), [0] * len(replica), paid_s=(1.0,) * 100))
    lines = fleet_lines(tables, 1.0)
    assert lines[1 : 1 + 1 + 32][-1] == "99              6    1,000.0   1,000.0       0.0"
    assert "the 32 of 100 replicas with most requests" in lines


def test_pools_have_names_and_prefill_replicas_show_what_they_did():
    from tests.cli import run

    fleet = ("simulate", "--fleet", "scenarios/fleets/two_prefill_two_decode.yaml", "--num-prompts", "20", "--request-rate", "8")
    lines = run(*fleet, "--random-input-len", "700", "--random-output-len", "12", "--draws", "0").stdout.splitlines()
    head = next(i for i, line in enumerate(lines) if line.startswith("replica "))
    assert lines[head].split()[1] == "pool"
    assert lines[head].endswith("prefilled")
    rows = [line.split() for line in lines[head + 1 : head + 5]]
    assert [row[1] for row in rows] == ["prefill", "prefill", "decode", "decode"]
    assert sum(int(row[-1].replace(",", "")) for row in rows[:2]) == 20 * 700
    assert max(map(len, lines)) <= 80
