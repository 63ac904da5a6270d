"""`python -m hw.products_table`: rates that products were made from come back, and the rows made slow are the ones it shows."""

from pathlib import Path
from typing import Any

import click.testing
import numpy as np
import pytest

from hw.artifact import load, write
from hw.engines.shapes import SHAPES
from hw.products_table import Smooth, command, computing, fit, layers_of, work_of
from hw.suites import products
from sim.errors import SimctlError, UsageError

FOLDER = Path(__file__).parents[2] / "scenarios" / "data" / "measured"
MEASURED = FOLDER / "h100"
TRUE = Smooth(3.0e12, 650e12, 4.0)
MODELS = ("llama3.1-8b", "qwen3-coder-30b-a3b")
USES = products.products_of({name: SHAPES[name] for name in MODELS})
POINTS = products.points_of(USES, "cuda")
SLOW = {("llama3.1-8b down", 448): 1.9, ("llama3.1-8b gate_up", 544): 1.3}


def made(noise: float = 0.0) -> Any:
    rng, data = (
        np.random.default_rng(0),
        products.dataset([], USES, POINTS, {"model": ", ".join(MODELS), "device": "cuda", "gpu_name": "G"}),
    )
    slow = [SLOW.get((USES[product], rows), 1.0) for product, rows in POINTS]
    seconds = TRUE.seconds(*work_of(data)) * slow * np.exp(noise * rng.normal(size=len(POINTS)))
    return data.assign(time_s_median=("point", seconds))


def shown(data: Any, folder: Path, *args: str) -> click.testing.Result:
    (path,) = write(data, folder / "p.nc", {})
    return click.testing.CliRunner().invoke(command, [str(path), *args])


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_the_rates_that_products_were_made_from_come_back(noise: float) -> None:
    data = made(noise)
    found = fit(*work_of(data), data.time_s_median.values)
    np.testing.assert_allclose(found[:2], TRUE[:2], rtol=1e-3 + noise)
    assert found.exponent == pytest.approx(TRUE.exponent, abs=0.3)


def test_only_the_rows_made_slow_are_shown_and_by_how_much(tmp_path: Path) -> None:
    data = made()
    said = shown(data, tmp_path, "--model", "llama3.1-8b")
    assert said.exit_code == 0, said.output
    lines = [line.split() for line in said.output.splitlines()[4:]]
    assert [line[0] for line in lines] == ["rows", "448", "544"]
    for line, (use, rows) in zip(lines[1:], SLOW, strict=True):
        (at,) = [i for i, (product, r) in enumerate(POINTS) if USES[product] == use and r == rows]
        own = 32e3 * float(data.time_s_median[at])
        assert line[5] == use.split()[1]
        assert float(line[3]) == pytest.approx(own * (1 - 1 / SLOW[use, rows]), abs=0.02)
        assert float(line[1]) == pytest.approx(float(line[2]) + float(line[3]), abs=0.02)
    assert "qwen3-coder" not in said.output
    assert len(shown(data, tmp_path, "--least", "0").output.splitlines()) > 2 * len(products.rows_of("cuda"))


def test_points_that_failed_are_left_out(tmp_path: Path) -> None:
    data = made()
    at = [i for i, (product, rows) in enumerate(POINTS) if USES[product] == "llama3.1-8b down" and rows == 448]
    data.time_s_median[at] = np.nan
    rows = [line.split()[0] for line in shown(data, tmp_path, "--model", "llama3.1-8b").output.splitlines()[5:]]
    assert rows == ["544"]


def test_what_cannot_be_shown_is_one_line(tmp_path: Path) -> None:

    wrong = click.testing.CliRunner().invoke(command, [str(MEASURED / "floor.nc")])
    assert isinstance(wrong.exception, SimctlError)
    assert "holds suite 'floor'" in str(wrong.exception)
    other = shown(made(), tmp_path, "--model", "qwen3-14b")
    assert isinstance(other.exception, UsageError)
    assert "no products of 'qwen3-14b' here; of llama3.1-8b, qwen3-coder-30b-a3b" in str(other.exception)
    with pytest.raises(UsageError, match="three measured points"):
        fit(np.ones(2), np.ones(2), np.ones(2))


@pytest.mark.parametrize(
    ("gpu", "model", "over", "tile"),
    [("h100", "llama3.1-8b", 0.36, "512x64"), ("h100", "qwen2.5-7b", 0.46, "512x64"), ("h100", "qwen3-14b", 0.41, "384x64"),
     ("h200", "llama3.1-8b", 0.34, "512x64"), ("h200", "qwen2.5-7b", 0.0, "128x160"), ("h200", "qwen3-14b", 0.0, "176x128")],
)  # fmt: skip
def test_products_of_448_rows_take_a_third_to_a_half_longer_where_gate_and_up_run_a_wide_tile(
    gpu: str, model: str, over: float, tile: str
) -> None:
    """As docs/measure.md has it: all three models on the H100, on the H200 the 8B alone; 464 rows run other kernels and are fine."""
    data = load(FOLDER / gpu / "products.nc", "products")
    ok = data.isel(point=np.flatnonzero(~np.isnan(data.time_s_median.values)))
    layers = layers_of(ok, model, fit(*work_of(ok), ok.time_s_median.values))
    seconds, smooth = (sum(getattr(layer, name)[layer.rows == 448].item() for layer in layers) for name in ("seconds", "smooth"))
    assert seconds / smooth - 1 == pytest.approx(over, abs=0.01 if over else 0.05)
    (gate_up,) = [layer for layer in layers if layer.name == "gate_up"]
    kernels = {rows: computing(kernel) for rows, kernel in zip(gate_up.rows.tolist(), gate_up.kernels, strict=True)}
    assert f"_{tile}_" in kernels[448]
    at = gate_up.rows == 464
    assert gate_up.seconds[at] < gate_up.smooth[at]


def profiled(model: str, rows: int) -> tuple[float, set[str]]:
    """(microseconds of a layer's longest product in profiled chunks of so many rows, median; the kernels that compute it)."""
    data = load(MEASURED / f"profile_{model}.nc", "profile")
    layers = SHAPES[model]["num_hidden_layers"]
    each = np.where(data.calls.values == layers, data.us.values / layers, 0.0)
    each = each * (data.kernel_kind.values.astype(str) == "matmul")
    cells = np.flatnonzero((data.decode_seqs.values + data.prefill_tokens.values == rows) & (data.prefill_tokens.values > 0))
    names = data.kernel_name.values.astype(str)
    return float(np.median(each[cells].max(axis=1))), {names[i] for i in each[cells].argmax(axis=1)}


@pytest.mark.parametrize(
    ("model", "us", "wide"),
    [("llama3.1-8b", {264: 107, 288: 134, 512: 153, 520: 209}, {288, 520}), ("qwen2.5-7b", {264: 113, 288: 120, 512: 181, 520: 258}, {520}),
     ("qwen3-14b", {264: 148, 288: 160, 512: 231, 520: 332}, {520})],
)  # fmt: skip
def test_profiles_of_the_engine_show_such_rows_and_their_kernel(model: str, us: dict[int, float], wide: set[int]) -> None:
    """Gate and up by rows, as docs/measure.md has it: the slow ones are computed by tiles of 384 columns."""
    for rows, time in us.items():
        found, kernels = profiled(model, rows)
        assert found == pytest.approx(time, abs=1.0)
        assert all(("_384x" in kernel) == (rows in wide) for kernel in kernels)
    data = load(MEASURED / f"profile_{model}.nc", "profile")
    tiles = np.array(["_384x" in name for name in data.kernel_name.values.astype(str)])
    in_layers = (data.calls.values * tiles >= SHAPES[model]["num_hidden_layers"]).any(axis=1)
    rows = (data.decode_seqs.values + data.prefill_tokens.values)[in_layers].astype(int)
    assert set(rows[rows > 128].tolist()) == wide
