"""`--goodput ttft:200 tpot:50` takes the pairs that follow it, and counts requests that meet them all."""

import json
from pathlib import Path

import pytest

from sim.errors import UsageError
from sim.results.metrics import parse_goodput, request_latencies_ms
from sim.results.run_files import read_run
from simctl.cli import group

AZURE = Path(__file__).parents[1] / "data" / "small_azure.csv"


def test_spellings():
    assert parse_goodput(["ttft:200 tpot:50.5", "e2el:5000"]) == {"ttft": 200.0, "tpot": 50.5, "e2el": 5000.0}
    assert parse_goodput([]) == {}
    for wrong in ("ttft", "ttft:", "ttft:-1", "ttft:0", "ttft:1.2.3", "itl:5"):
        with pytest.raises(UsageError):
            parse_goodput([wrong])


def test_pairs_after_the_option_belong_to_it(tmp_path, capsys):
    goals = ["--goodput", "ttft:400", "tpot:60", "e2el:3000"]
    where = ["--trace", str(AZURE), "--trace-format", "azure", "--model", "Llama-3.1-8B", "--gpu", "A10", "--max-model-len", "auto"]
    group.main(["simulate", *goals, *where, "--json", "--out", str(tmp_path / "run")], standalone_mode=False)
    summary = json.loads(capsys.readouterr().out)
    record, _ = read_run(tmp_path / "run" / "run.nc")
    latency = request_latencies_ms(record)
    good = (latency["ttft"] <= 400) & ~(latency["tpot"] > 60) & (latency["e2el"] <= 3000)
    assert 0 < good.sum() < 60
    assert summary["request_goodput"] == pytest.approx(good.sum() / summary["duration"])
