"""run.nc holds the whole run: same seed, same bytes; the summary derives from it again; it appears whole or not at all."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from sim.errors import UsageError
from sim.files import replaced_directory
from sim.results.intervals import around, between_replicates, block_intervals, rate_intervals, repeat_intervals
from sim.results.metrics import cost_shares, summarise
from sim.results.run_files import RUN_FILE, SUMMARY_FILE, read_run
from simctl.cli import group

DATA = Path(__file__).parents[1] / "data"
NAMES = (RUN_FILE, SUMMARY_FILE)
AZURE = [
    "--trace",
    str(DATA / "small_azure.csv"),
    "--trace-format",
    "azure",
    "--model",
    "Llama-3.1-8B",
    "--gpu",
    "A10",
    "--max-model-len",
    "auto",
]
SESSIONS = ["--trace", str(DATA / "small_sessions.jsonl"), "--model", "Qwen2.5-7B", "--gpu", "H100"]


def simulate(*args):
    group.main(["simulate", *map(str, args)], standalone_mode=False)


@pytest.mark.parametrize("workload", [AZURE, SESSIONS], ids=["azure", "sessions"])
def test_same_seed_same_bytes(workload, tmp_path):
    for name in ("a", "b"):
        simulate(*workload, "--seed", 3, "--goodput", "ttft:200 tpot:50", "--out", tmp_path / name)
    for name in NAMES:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize("workload", [AZURE, SESSIONS], ids=["azure", "sessions"])
def test_the_summary_derives_from_run_nc(workload, tmp_path):
    simulate(*workload, "--goodput", "ttft:200", "tpot:50", "--out", tmp_path / "run")
    record, attrs = read_run(tmp_path / "run" / RUN_FILE)
    written = json.loads((tmp_path / "run" / SUMMARY_FILE).read_text())
    again = summarise(record, {"ttft": 200.0, "tpot": 50.0})
    assert again == {key: written[key] for key in again}
    noise = between_replicates(again, block_intervals(record))
    assert {k: list(v) for k, v in noise.items()} == {k: written["run_noise_90"][k] for k in noise}
    assert cost_shares(record) == pytest.approx(written["cost_shares"], rel=1e-6)  # terms are kept in single precision
    assert attrs["model"] == written["provenance"]["model"]
    terms = record.terms.sum(axis=1)
    durations = record.iterations["duration_s"]
    assert terms.sum() == pytest.approx(durations.sum(), rel=1e-6)
    # tokens are sent once the next iteration is launched, which takes its time where that carries prefill
    moved = np.flatnonzero(~np.isclose(terms, durations, rtol=1e-6))
    prefill = np.flatnonzero(record.iterations["prefill_tokens"])
    assert all(np.abs(prefill - i).min() <= 1 for i in moved)


def test_variables_carry_units_and_provenance_names_no_place(tmp_path):
    xr = pytest.importorskip("xarray")
    simulate(*AZURE, "--out", tmp_path / "run")
    with xr.open_dataset(tmp_path / "run" / RUN_FILE, engine="h5netcdf") as run:
        assert run.sizes["request"] == 60
        assert all("units" in run[name].attrs for name in run.data_vars if run[name].dtype.kind in "if")
        assert {"seed", "model", "gpu", "rates_basis", "simctl_version", "trace_sha256"} <= set(run.attrs)
        assert not any(str(DATA) in str(value) for value in run.attrs.values())


def test_sessions_follow_their_previous_turn_and_reuse_its_context(tmp_path):
    simulate(*SESSIONS, "--out", tmp_path / "run")
    record, _ = read_run(tmp_path / "run" / RUN_FILE)
    by_turn = {(s, int(t)): i for i, (s, t) in enumerate(zip(record.session_ids, record.requests["turn"], strict=True))}
    for (session, turn), i in by_turn.items():
        if turn:
            before = by_turn[session, turn - 1]
            assert record.requests["arrival_s"][i] == pytest.approx(record.requests["finish_s"][before] + 0.5, rel=1e-12)
            repeated = record.requests["prompt_tokens"][before] + record.requests["output_tokens"][before]
            # the last sampled token's KV is never written
            assert record.requests["cached_tokens"][i] == (repeated - 1) // 16 * 16
        else:
            assert record.requests["cached_tokens"][i] == 0
    assert len(by_turn) == 24


def test_without_prefix_caching_nothing_is_reused(tmp_path):
    simulate(*SESSIONS, "--no-enable-prefix-caching", "--out", tmp_path / "run")
    record, _ = read_run(tmp_path / "run" / RUN_FILE)
    assert record.requests["cached_tokens"].sum() == 0


def test_a_failed_write_keeps_the_old_result(tmp_path):
    target = tmp_path / "run"
    with replaced_directory(target, NAMES) as staging:
        (staging / RUN_FILE).write_text("old")

    def fail_half_way():
        with replaced_directory(target, NAMES) as staging:
            (staging / RUN_FILE).write_text("new")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_half_way()
    assert (target / RUN_FILE).read_text() == "old"
    assert os.listdir(tmp_path) == ["run"]


def test_a_new_result_replaces_the_old_one_and_leaves_nothing_beside(tmp_path):
    for text in ("old", "new"):
        with replaced_directory(tmp_path / "deep" / "run", NAMES) as staging:
            (staging / RUN_FILE).write_text(text)
    assert (tmp_path / "deep" / "run" / RUN_FILE).read_text() == "new"
    assert os.listdir(tmp_path / "deep") == ["run"]


def test_foreign_files_are_never_touched(tmp_path):
    (tmp_path / "thesis.tex").write_text("years")
    with pytest.raises(UsageError, match=r"thesis\.tex"), replaced_directory(tmp_path, NAMES):
        pass
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_kill_9_in_the_middle_leaves_the_old_result(tmp_path):
    target = tmp_path / "run"
    with replaced_directory(target, NAMES) as staging:
        (staging / RUN_FILE).write_text("old")
    script = (
        "import sys, time; from pathlib import Path; from sim.files import replaced_directory\n"
        f"with replaced_directory(Path({str(target)!r}), {NAMES!r}) as staging:\n"
        f"    (staging / {RUN_FILE!r}).write_text('half'); print('writing', flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    assert process.stdout.readline() == "writing\n"
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=120)
    process.stdout.close()
    assert (target / RUN_FILE).read_text() == "old"
    with replaced_directory(target, NAMES) as staging:  # and the next run is not in the way of its remains
        (staging / RUN_FILE).write_text("new")
    assert (target / RUN_FILE).read_text() == "new"


def test_kill_9_of_a_first_run_leaves_no_result(tmp_path):
    command = [sys.executable, "-m", "simctl", "simulate", *AZURE, "--draws", "1000", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not os.listdir(tmp_path) and time.monotonic() < deadline:  # the run has begun when its staging folder is there
        time.sleep(0.01)
    time.sleep(0.2)
    assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=120)
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def with_intervals(tmp_path_factory):
    out = tmp_path_factory.mktemp("intervals") / "run"
    simulate(
        "--gpu",
        "A10",
        "--model",
        "Llama-3.1-8B",
        "--max-model-len",
        "auto",
        "--num-prompts",
        20,
        "--request-rate",
        1,
        "--draws",
        25,
        "--out",
        out,
    )
    return out


@pytest.mark.parametrize("dim", ["draw", "repeat"])
def test_intervals_derive_from_what_is_kept(with_intervals, dim):
    import xarray as xr

    written = json.loads((with_intervals / SUMMARY_FILE).read_text())
    key, intervals, count = {"draw": ("rates_90", rate_intervals, 25), "repeat": ("run_noise_90", repeat_intervals, 20)}[dim]
    with xr.open_dataset(with_intervals / RUN_FILE, engine="h5netcdf") as run:
        table = run[f"{dim}_value"].load()
    assert table.sizes[dim] == count
    figures = {str(name): table.values[:, i] for i, name in enumerate(table[f"{dim}_figure"].values)}
    found = around(written, intervals(figures))  # they hold the run that is shown
    if dim == "repeat":
        found = between_replicates({name: value for name, value in written.items() if name.endswith("_ms")}, found)
        assert {name: list(pair) for name, pair in found.items()} == written[key]
    else:  # draws that were not run move the ends
        assert found.keys() == written[key].keys()
        low, high = found["mean_tpot_ms"]
        assert written[key]["mean_tpot_ms"] == pytest.approx([low, high], rel=0.1)
    assert figures["mean_tpot_ms"].std() > 0
