"""Rates are printed in units of their size, medians with their intervals; what a command learns besides is JSON where that is asked for."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from calibrate.sampling import Diagnostics
from sim.cost.rates import UNITS
from simctl.text.calibrate_text import rate_table, scaled
from studies import kv_capacity, recall
from tests.cli import run

FINE = Diagnostics(1.001, 900.0, 0)


@pytest.mark.parametrize(
    ("unit", "value", "expected"),
    [
        ("s per iteration", 1.6e-3, (1e-3, "ms")),
        ("s per prompt token of a request taken in", 8.6e-8, (1e-9, "ns")),
        ("bytes/s, host link", 5.6e10, (1e9, "GB/s")),
        ("flop/s, attention", 6.3e14, (1e12, "TFLOP/s")),
        ("exponent of the smooth maximum", 3.9, (1.0, "")),
        ("query tokens by which a prefill chunk's attention is padded", 3.3, (1.0, "tokens")),
    ],
)
def test_a_unit_has_the_prefix_of_its_size(unit, value, expected):
    assert scaled(unit, value) == expected


def test_every_rate_there_is_fits_its_line():
    middle = {"s": 1.234e-5, "bytes/s,": 2.5e12, "flop/s,": 6e14}
    rates = [(n, u, *([v * f for f in (0.0123, 1.0, 98.7)] for v in [middle.get(u.split(" ")[0], 0.5)] * 2)) for n, u in UNITS.items()]
    lines = rate_table(rates)
    assert len(lines) == len(UNITS) + 1
    assert max(map(len, lines)) <= 80
    assert lines[1].split()[:4] == ["c0_s", "12.3", "[0.152", "1218]"]


@pytest.fixture
def printed(capsys):
    def of(main, *argv):
        assert main(argv) == 0
        return capsys.readouterr().out

    return of


def test_what_engines_take_is_json_where_asked(monkeypatch, printed):
    start = SimpleNamespace(name="made", gpu="H100", blocks=100.0, tp=1)
    parts = {name: np.linspace(1, 2, 50) for name in ("fixed", "kept", "server", "group", "mlp", "logits", "scale", "noise")}
    monkeypatch.setattr("studies.engine_memory.packaged_runs", lambda: [start])
    monkeypatch.setattr("studies.engine_memory.distinct", lambda runs: runs)
    monkeypatch.setattr("studies.kv_pools.fitted_starts", list)
    monkeypatch.setattr(
        "studies.engine_memory.learn",
        lambda runs, settings: (SimpleNamespace(**parts, diagnostics=FINE), {"made@H100": np.linspace(90, 98, 50)}),
    )
    (row,) = json.loads(printed(kv_capacity.main, "--json"))["left_out"]
    assert (row["start"], row["blocks"], row["inside"]) == ("made", 100, False)
    out = printed(kv_capacity.main)
    assert "0 of 1 inside" in out
    assert "-6.00% out" in out


def test_recall_is_json_where_asked(monkeypatch, printed):
    model = SimpleNamespace(
        predict=lambda *_: np.full(200, 0.9),
        scalars={n: np.ones(9) for n in ("context_log_sd", "cell_sd", "haystack_sd", "model_sd")},
        context={},
    )
    monkeypatch.setattr("studies.needle_recall.package.learn", lambda evidence, settings: (model, FINE))
    report = json.loads(printed(recall.main, "--json"))
    assert len(report["cells"]) == 10
    assert report["parameters"]["cell_sd"] == [1.0, 1.0, 1.0]
    assert max(map(len, printed(recall.main).splitlines())) <= 80


def test_the_list_says_what_each_file_is_for():
    out = run("validate", "--list").stdout
    assert max(map(len, out.splitlines())) <= 80
    assert out.index("engine grids: what `simctl calibrate`") < out.index("h100/engine-grid_llama3.1-8b.nc")
    assert "population.nc: posterior for GPUs never measured" in out
    listed = json.loads(run("validate", "--list", "--json").stdout)["measurements"]
    assert [name for name in listed if f"    {name}\n" not in out] == []
