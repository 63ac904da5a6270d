"""`simctl explain` reads a run back and says where a request's time went, in text of 80 columns, as JSON and as a picture."""

import json
import shutil
from pathlib import Path

import pytest
import xarray as xr

from sim.engine.config import EngineConfig
from sim.errors import UsageError
from sim.rates.serving import HostRates
from sim.results.explain import explain, slowest
from sim.results.run_files import read_run
from sim.ticks import TICK_S, TICKS_PER_S
from simctl.report import of_request
from simctl.text.explain_text import one_request, sentences
from tests.cli import run as command
from tests.runs import run, trace_of

SESSIONS = Path(__file__).parents[1] / "data" / "small_sessions.jsonl"
LOAD = (
    "simulate", "--gpu", "H100", "--model", "Llama-3.1-8B", "--num-prompts", "90", "--turns", "3", "--request-rate", "60",
    "--random-input-len", "5000", "--replicas", "2", "--engine-option", "num-gpu-blocks=4000", "--draws", "0",
    "--router-option", "dispatch_s=0.02",
)  # fmt: skip


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    directory = tmp_path_factory.mktemp("explained") / "run"
    assert command(*LOAD, "--out", str(directory)).code == 0
    return directory


def test_text_fits_a_terminal_and_its_stages_add_up(out):
    record, _ = read_run(out)
    for one in slowest(record, 5):
        result = command("explain", str(out), one.request_id)
        assert result.code == 0, result.stderr
        lines = result.stdout.splitlines()
        assert max(map(len, lines)) <= 80
        stages = [line for line in lines[: lines.index(next(each for each in lines if each.startswith("= time to first")))] if "%" in line]
        whole = [float(line.split()[-3].replace(",", "")) for line in stages if not line.startswith(" ")]
        total = float(next(line for line in lines if line.startswith("= time to first")).split()[-3].replace(",", ""))
        assert sum(whole) == pytest.approx(total, abs=0.06 * len(whole))


def test_json_has_the_ticks_that_add_up(out):
    record, _ = read_run(out)
    found = json.loads(command("explain", str(out), "--slowest", "3", "--json").stdout)
    assert [one["ttft"]["ms"] for one in found] == sorted((one["ttft"]["ms"] for one in found), reverse=True)
    for one in found:
        again = json.loads(command("explain", str(out), one["request_id"], "--json").stdout)
        assert again == one
        row = record.request_ids.index(one["request_id"])
        took_s = record.requests["first_token_s"][row] - record.requests["arrival_s"][row]
        assert sum(part["ticks"] for part in one["ttft"]["parts"]) * TICK_S == pytest.approx(took_s, rel=1e-15)
        stages = {part["stage"]: part for part in one["ttft"]["parts"]}
        assert stages["router"]["ms"] == pytest.approx(20.0, abs=1e-9)
        assert sum(stages["queue"]["why_ms"].values()) == pytest.approx(stages["queue"]["ms"])


def test_by_end_to_end_latency(out):
    text = command("explain", str(out), "--slowest", "4", "--by", "e2el").stdout
    record, _ = read_run(out)
    took = record.requests["finish_s"] - record.requests["arrival_s"]
    names = [line.split()[0] for line in text.splitlines()[1:5]]
    assert names == [record.request_ids[row] for row in (-took).argsort(kind="stable")[:4]]
    assert max(map(len, text.splitlines())) <= 80


def test_one_latency_alone_is_a_part_of_the_whole_answer(out):
    whole = command("explain", str(out), "17").stdout.splitlines()
    ttft, e2el = (command("explain", str(out), "17", "--by", by).stdout.splitlines() for by in ("ttft", "e2el"))
    totals = [line for line in whole if line.startswith("= ")]
    for total, lines in zip(totals, (ttft, e2el), strict=True):
        assert [line.split() for line in lines if line.startswith("= ")] == [total.split()]
    assert not any(line.startswith("decode") or "decoding" in line for line in ttft)
    assert whole[:2] == ttft[:2] == e2el[:2]


def test_a_dataset_is_as_good_as_a_record(out):
    record, _ = read_run(out)
    with xr.open_dataset(out / "run.nc", engine="h5netcdf") as dataset:
        assert explain(dataset, "7") == explain(record, "7")


def test_a_request_is_drawn_from_its_sending_to_its_last_token(out):
    """Bars of its stages fill the whole time, and the label between two others points away from the nearer one."""
    record, _ = read_run(out)
    for place, name in enumerate(record.request_ids[:10]):
        _, stages, *marks = of_request.picture(record, name).spec["layer"]
        bars, labels = stages["data"]["values"], [each for each in marks if each["mark"]["type"] == "text"]
        sent, first, last = (each["data"]["values"][0]["x"] for each in labels)
        assert bars[0]["x"] == sent == pytest.approx(record.requests["arrival_s"][place])
        assert [each["x2"] for each in bars[:-1]] == pytest.approx([each["x"] for each in bars[1:]])
        assert bars[-1]["x2"] == pytest.approx(last, abs=2e-3)  # the API server's response follows the last stage
        assert [each["mark"]["align"] for each in labels] == ["right", "left" if first - sent < last - first else "right", "left"]


def test_a_picture_is_whole_or_an_error(out, tmp_path):
    assert command("explain", str(out), "7", "--plot", str(tmp_path / "one.svg")).code == 0
    assert (tmp_path / "one.svg").read_text().rstrip().endswith("</svg>")
    result = command("explain", str(out), "7", "--plot", str(tmp_path / "one.xyz"))
    assert (result.code, result.stderr.count("\n")) == (2, 1)
    assert [each.name for each in tmp_path.iterdir()] == ["one.svg"]


def test_a_session_away_from_its_cache_is_told_so(out):
    record, attrs = read_run(out)
    rows = {(s, int(t)): i for i, (s, t) in enumerate(zip(record.session_ids, record.requests["turn"], strict=True))}
    replica, cached = record.requests["replica"], record.requests["cached_tokens"]
    away = [i for (s, t), i in rows.items() if t and replica[rows[s, t - 1]] != replica[i] and not cached[i]]
    for row in away[:5]:
        one = explain(record, record.request_ids[row])
        assert one.earlier.tokens == 5000 * one.turn + 128 * one.turn - 1
        before = replica[rows[record.session_ids[row], one.turn - 1]]
        where = f"turn {one.turn - 1} ran on replica {before} and left {one.earlier.tokens:,} tokens of this prompt there"
        assert sentences(one, attrs)[-1] == f"Cold: nothing of its prompt was cached. Its session's {where}, unless evicted since."
    calm = explain(record, record.request_ids[rows[record.session_ids[0], 0]])
    assert sentences(calm, attrs)[-1] == "Cold: nothing of its prompt was cached."


def test_the_request_that_was_waited_for_is_named():
    config = EngineConfig(num_gpu_blocks=200, max_num_batched_tokens=300, options={"async_scheduling": False})
    record, _ = run(trace_of([(0.0, 1500, 4), (0.01, 20, 4)]), config)
    text = sentences(explain(record, "1"), {})
    # five iterations of 310 ms with nothing but the first, and its share of the sixth
    assert text[0].startswith("1.54 s of its 1.57 s TTFT it waited for the prefill of 0 (1,500 tokens).")


def test_the_turns_of_others_at_the_api_server():
    host = HostRates(request_s=0.002, prompt_token_s=0.0, response_s=0.0, serial_s=0.01)
    record, _ = run(trace_of([(0.0, 16, 4)] * 3), EngineConfig(num_gpu_blocks=200), host=host)
    part = next(part for part in explain(record, "2", host).ttft if part.stage == "api_server")
    assert {name: ticks / TICKS_PER_S for name, ticks in part.why.items()} == pytest.approx({"own_request": 0.012, "turns": 0.02})


def test_one_that_gave_up_is_explained_until_then(tmp_path):
    trace = tmp_path / "trace.jsonl"
    lines = [
        {"arrival_s": 0.0, "prompt_tokens": 60_000, "output_tokens": 5},
        {"arrival_s": 0.1, "prompt_tokens": 100, "output_tokens": 5, "cancel_s": 5.0},
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    load = ("simulate", "--trace", str(trace), "--gpu", "A10", "--model", "Qwen2.5-7B", "--max-num-seqs", "1", "--max-model-len", "70000")
    assert command(*load, "--engine-option", "num-gpu-blocks=5000", "--draws", "0", "--out", str(tmp_path / "run")).code == 0
    text = command("explain", str(tmp_path / "run"), "1").stdout
    assert "it did not finish" in text
    assert "for want of a sequence slot" in text
    assert "= until it came to nothing" in text
    assert text.endswith("It was never scheduled.\n")


def test_what_cannot_be_explained_is_one_line(out, tmp_path):
    short = tmp_path / "short"
    load = (*LOAD[:5], "--num-prompts", "20", "--request-rate", "200", "--random-input-len", "5000", "--draws", "0", "--out", str(short))
    assert command(*load, "--no-iterations", "--admission", "max-queue=2").code == 0
    (tmp_path / "run.nc").write_text("no")
    broken = tmp_path / "broken.nc"
    broken.write_bytes((out / "run.nc").read_bytes()[:5000])
    with xr.open_dataset(out / "run.nc", engine="h5netcdf") as dataset:
        dataset.drop_vars("submitted_s").to_netcdf(tmp_path / "old.nc", engine="h5netcdf")
        wrong = dataset.load().copy()
        wrong["chunk_request"] = wrong["chunk_request"] + 10_000
        wrong.to_netcdf(tmp_path / "wrong.nc", engine="h5netcdf")
    shutil.copy(SESSIONS, tmp_path / "trace.nc")
    turned_away = json.loads((short / "summary.json").read_text())["rejected_full_queue"]
    assert turned_away
    record, _ = read_run(short)
    refused = record.request_ids[int(record.requests["rejected"].argmax())]
    cases = [
        ((out, "nobody"), "no request 'nobody' in the run"),
        ((out,), "which request?"),
        ((out, "7", "--slowest", "3"), "which request?"),
        ((tmp_path / "missing", "7"), "No such file"),
        ((tmp_path / "run.nc", "7"), "not a run.nc"),
        ((tmp_path / "trace.nc", "7"), "not a run.nc"),
        ((broken, "7"), "broken.nc: "),
        ((tmp_path / "old.nc", "7"), "older version"),
        ((tmp_path / "wrong.nc", "7"), "chunk_request names what is not there"),
        ((short, "0"), "no iteration log"),
        ((short, refused), "was turned away"),
    ]
    for arguments, message in cases:
        result = command("explain", *map(str, arguments))
        assert (result.code in (1, 2), result.stdout, result.stderr.count("\n")) == (True, "", 1), arguments
        assert message in result.stderr, arguments


def test_an_unknown_name_is_a_usage_error(out):
    record, attrs = read_run(out)
    with pytest.raises(UsageError, match="no request 'x'"):
        explain(record, "x")
    assert one_request(explain(record, "7"), attrs)[0].startswith("request 7: turn ")
