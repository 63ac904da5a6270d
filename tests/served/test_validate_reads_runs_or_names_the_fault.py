"""Served measurements and per-request logs are read, or refused in one line; the verdict is the exit code."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from calibrate.served.flags import read_flags
from calibrate.served.runs import read_served
from calibrate.served.validation import _on_the_fit
from sim.errors import UsageError
from sim.rates.host import Host
from sim.specs.lora import Lora
from sim.specs.parallel import NO_PARALLEL, Parallel
from tests.cli import run
from tests.served.made_runs import open_loop

SERVED = Path(__file__).resolve().parents[2] / "scenarios" / "data" / "measured"
COLUMNS = ["arrival_s", "prompt_tokens", "output_tokens", "first_token_s", "finish_s"]
ARGUMENTS = ["--model", "Qwen2.5-7B", "--gpu", "H100", "--max-num-seqs", "256", "--max-num-batched-tokens", "8192", "--draws", "2"]


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    e = open_loop("log", 4.0, 80)
    path = tmp_path_factory.mktemp("log") / "production.csv"
    with path.open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(COLUMNS)
        for i in range(80):
            start = 100.0 + e.arrival_s[i]
            writer.writerow([start, e.prompt_tokens[i], e.output_tokens[i], start + e.ttft_s[i], start + e.e2el_s[i]])
    return path


def test_a_log_is_learnt_from_its_first_part_and_scored_on_the_last(log):
    result = run("validate", "--run", str(log), *ARGUMENTS, "--json")
    (report,) = json.loads(result.stdout)
    assert report["fitted_to"] == ["production.csv (first)"]
    assert {s["experiment"] for s in report["scores"]} == {"production.csv (rest)"}
    assert [s["requests"] for s in report["scores"] if s["metric"] != "p99_ttft_s"] == [40, 40, 40]
    assert report["notes"][-1].startswith("fitted to requests 1 to 20 (launches ")
    assert "which lowered the errors on requests 21 to 40; neither is scored. Next: simctl learn LOG --host-out" in report["notes"][-1]
    assert result.code == (0 if all(s["within"] for s in report["scores"]) else 1)


@pytest.mark.parametrize("command", [("validate", "--run"), ("check",), ("learn",)])
def test_a_server_whose_attention_is_a_plugins_is_refused(command):
    result = run(*command, str(SERVED / "validation" / "h100_served_qwen2.5-7b-14-layers_sparse-k32.nc"))
    assert (result.code, result.stderr.count("\n")) == (2, 1)
    assert "attention is a plugin's (--additional-config)" in result.stderr


@pytest.mark.parametrize(("launch", "kept"), [(3.0, True), (15.99, False)])
def test_a_host_at_the_edge_of_what_hosts_are_is_not_kept_for_other_questions(launch, kept):
    said = _on_the_fit(Host(launch=launch), True, "requests 1 to 20", "requests 21 to 40")
    assert ("--host-out" in said) is kept
    assert ("No host takes so long" in said) is not kept


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda rows: rows[0].__setitem__(4, "end_s"), "finish_s"),
        (lambda rows: rows[3].__setitem__(0, "nan"), "line 4: arrival_s is missing"),
        (lambda rows: rows[3].__setitem__(1, "x"), "line 4: prompt_tokens"),
        (lambda rows: rows[3].__setitem__(1, "0"), "line 4: prompt_tokens"),
        (lambda rows: rows[3].__setitem__(3, "0"), "line 4: ttft_s is -"),
        (lambda rows: rows[3].__setitem__(4, ""), "line 4: e2el_s is not a number"),
        (lambda rows: rows.__delitem__(slice(1, None)), "too few"),
        (lambda rows: rows.__delitem__(slice(5, None)), "too few"),
    ],
)
def test_a_wrong_log_is_one_line(log, tmp_path, change, named):
    with log.open(newline="") as handle:
        rows = list(csv.reader(handle))
    change(rows)
    path = tmp_path / "wrong.csv"
    with path.open("w", newline="") as handle:
        csv.writer(handle).writerows(rows)
    result = run("validate", "--run", str(path), *ARGUMENTS)
    assert result.code == 2
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert named in result.stderr


def test_unknown_names_and_foreign_files(tmp_path):
    assert run("validate", "--run", "nowhere").code == 2
    foreign = tmp_path / "x.nc"
    foreign.write_bytes(b"not netCDF")
    result = run("validate", "--run", str(foreign))
    assert result.code == 2
    assert "x.nc" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_the_packaged_run_is_complete():
    root = Path(__file__).resolve().parents[2] / "scenarios" / "data" / "measured"
    served = read_served(root / "h100" / "served_qwen2.5-7b.nc")
    kinds = {e.kind for e in served.experiments}
    assert kinds == {"ladder", "open", "sessions", "closed"}
    assert served.limits.max_num_seqs == 256
    for e in served.experiments:
        assert (e.ttft_s > 0).all()
        assert (e.e2el_s >= e.ttft_s).all()
        assert (np.diff(e.arrival_s) >= 0).all()
        assert len(e.trace()) == len(e.arrival_s)


def test_a_burst_ran_on_the_server_with_little_kv():
    root = Path(__file__).resolve().parents[2] / "scenarios" / "data" / "measured" / "h100"
    for name in ("served_llama3.1-8b", "served_qwen2.5-7b_burst"):
        run_ = read_served(root / f"{name}.nc")
        (burst,) = [e for e in run_.experiments if e.kind == "burst"]
        assert run_.limits.num_gpu_blocks is None
        assert burst.limits is not None
        assert burst.limits.num_gpu_blocks == 1024
        assert run_.limits.max_num_seqs == burst.limits.max_num_seqs == 256
        assert burst.token_s is not None
        assert [len(t) for t in burst.token_s] == burst.output_tokens.tolist()
        np.testing.assert_allclose([t[0] for t in burst.token_s], burst.arrival_s + burst.ttft_s, atol=1e-5)


def test_a_run_without_a_low_load_takes_the_packaged_overhead():
    result = run("validate", "--run", "h100/served_qwen2.5-7b_burst", "--json")  # draws enough that their middle is not another host's
    (report,) = json.loads(result.stdout)
    assert report["fitted_to"] == []
    by_metric = {s["metric"]: s for s in report["scores"]}
    assert by_metric["e2el_s"]["bound"] == 0.05
    assert by_metric["e2el_s"]["within"]


def test_flags_of_sglang_become_limits_of_its_scheduler() -> None:
    flags = "--max-running-requests 64 --chunked-prefill-size 4096 --context-length 8192 --mem-fraction-static 0.8 --max-total-tokens 16384"
    limits = read_flags(flags, engine="sglang").limits
    assert (limits.engine, limits.max_num_seqs, limits.max_num_batched_tokens, limits.max_model_len) == ("sglang", 64, 4096, 8192)
    assert (limits.gpu_memory_utilization, limits.block_size, limits.num_gpu_blocks) == (0.8, 1, 16384)


@pytest.mark.parametrize(
    ("engine", "flags", "named"),
    [
        (
            "sglang",
            "--model-path m --disable-radix-cache --schedule-policy lpm --stream-interval=8",
            ("stream-interval",),
        ),
        ("sglang", "--max-num-seqs 8", ("max-num-seqs",)),  # another engine's
        ("vllm", "--max-total-tokens 9000", ("max-total-tokens",)),  # SGLang's
        ("vllm", "--max-num-seqs 8 --disable-log-stats --disable-custom-all-reduce --seed 3", ("disable-custom-all-reduce",)),
    ],
)
def test_flags_without_a_place_in_the_simulation_are_named(tmp_path, engine, flags, named):
    path = tmp_path / "served.nc"
    with xr.open_dataset(SERVED / "h100" / "served_qwen2.5-7b_burst.nc", decode_timedelta=False) as data:
        data.assign_attrs(plan_engine=engine, plan_server_flags=flags).to_netcdf(path, engine="h5netcdf")
    run_ = read_served(path)
    assert [note for note in run_.notes if "not simulated" in note] == [f"its server's --{name} is not simulated" for name in named]
    assert run_.limits.enable_prefix_caching == ("radix" not in flags)


def test_flags_become_limits():
    limits = read_flags("--max-num-seqs 64 --gpu-memory-utilization=0.8 --num-gpu-blocks-override 512 --no-enable-prefix-caching").limits
    assert (limits.max_num_seqs, limits.gpu_memory_utilization, limits.num_gpu_blocks) == (64, 0.8, 512)
    assert not limits.enable_prefix_caching
    assert read_flags("").limits.enable_prefix_caching
    twice = read_flags("--max-total-tokens 90000 --max-total-tokens 16384", engine="sglang")
    assert twice.limits.num_gpu_blocks == 16384  # the last counts


@pytest.mark.parametrize(("name", "tokens"), [("eager", 30_512), ("pp2", 30_512), ("eagle3-k2", 70_272)])
def test_a_pool_given_in_bytes_holds_the_tokens_that_the_engine_said(name, tokens):
    assert read_served(SERVED / "validation" / f"h100_served_llama3.1-8b_{name}.nc").limits.num_gpu_blocks == tokens // 16


def test_flags_say_drafts_adapters_and_parallelism():
    drafts = '--speculative-config {"method": "eagle3", "num_speculative_tokens": 2, "synthetic_acceptance_rates": [0.7, 0.49]}'
    limits = read_flags(f"--enforce-eager --enable-lora --max-loras 4 {drafts}", 0.5).limits
    assert limits.enforce_eager
    assert limits.lora == Lora(16, 4, 0.5)
    assert limits.options == {"draft_tokens": 2, "drafter": "eagle3", "acceptance_per_position": "0.7,0.49"}
    assert read_flags("--pipeline-parallel-size 2 --enable-expert-parallel").parallel == Parallel(2, 1, True)
    assert read_flags("").parallel == NO_PARALLEL
    with pytest.raises(UsageError, match="speculative-config"):
        read_flags('--speculative-config {"method": "eagle3"}')


def test_an_overhead_of_another_run_is_transferred(log, tmp_path):
    path = tmp_path / "overhead.json"
    own = run("validate", "--run", str(log), *ARGUMENTS, "--save-overhead", str(path))
    assert "wrote" in own.stderr
    (report,) = json.loads(run("validate", "--run", str(log), *ARGUMENTS, "--overhead", str(path), "--json").stdout)
    assert report["fitted_to"] == []
    assert {s["experiment"] for s in report["scores"]} == {"production.csv"}
    saved = json.loads(path.read_text(encoding="utf-8"))
    assert report["overhead"] == saved
    binary = tmp_path / "binary"
    binary.write_bytes(b"\x7fELF\xd0\xff")
    for other in (log, binary):
        refused = run("validate", "--run", str(log), *ARGUMENTS, "--overhead", str(other))
        assert refused.code == 1
        assert refused.stderr.splitlines()[-1].startswith(f"simctl: {other}: not a serving overhead")


def test_a_log_in_another_tools_layout_is_validated_alike(log, tmp_path):
    from calibrate.logs.read import read_log
    from tests.logs.made_logs import as_bench_serve

    bench = tmp_path / "production.json"
    bench.write_text(json.dumps(as_bench_serve(read_log(log).experiment)))
    one, other = (json.loads(run("validate", "--run", str(path), *ARGUMENTS, "--json").stdout)[0] for path in (log, bench))
    for mine, theirs in zip(one["scores"], other["scores"], strict=True):
        assert mine["median_abs"] == pytest.approx(theirs["median_abs"], abs=1e-4)


@pytest.mark.parametrize("slow", [1.0, 1.3])
def test_learning_from_a_log_never_does_worse_than_the_packaged_overhead(log, tmp_path, slow):
    """Tokens that came slower in the first part than in the rest do not spoil it, either: a host's priors bound what they can teach."""
    with log.open(newline="") as handle:
        head, *rows = csv.reader(handle)
    for row in rows[:20]:
        first, last = float(row[3]), float(row[4])
        row[4] = str(first + slow * (last - first))
    path = tmp_path / "log.csv"
    with path.open("w", newline="") as handle:
        csv.writer(handle).writerows([head, *rows])
    learnt, given = (
        json.loads(run("validate", "--run", str(path), *ARGUMENTS, *more, "--json").stdout)[0] for more in ([], ["--transferred"])
    )
    rest = {s["metric"]: s["median_abs"] for s in learnt["scores"]}
    told = json.loads(
        run("validate", "--run", str(path), *ARGUMENTS, "--log-option", "learn-from=20", "--log-option", "skip=0", "--json").stdout
    )[0]
    assert told["scores"] == learnt["scores"]
    never = {s["metric"]: s["median_abs"] for s in given["scores"]}
    assert rest["e2el_s"] < never["e2el_s"]


def test_cold_requests_at_the_head_of_a_log_are_skipped(log, tmp_path):
    from dataclasses import replace

    from calibrate.logs.read import read_log
    from calibrate.served.validation import learnt_part

    e = read_log(log).experiment
    assert learnt_part(e, None, None) == (0, 20)
    cold = replace(e, ttft_s=np.where(np.arange(80) < 3, 2.0, e.ttft_s))
    assert learnt_part(cold, None, None) == (3, 23)
    assert learnt_part(cold, 10, 0) == (0, 10)
    with pytest.raises(UsageError, match="too few to skip 75"):
        learnt_part(e, 10, 75)
