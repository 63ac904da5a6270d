"""Of a list of eighty products `hw.products_table` shows a line each, 80 columns wide, with its slow rows; its models on demand."""

from pathlib import Path

import click.testing
import numpy as np
import pytest

from hw.artifact import write
from hw.products_list import uses_of
from hw.products_pack import LEAST_ROWS, packed
from hw.products_table import WIDTH, Smooth, command, depth, work_of
from hw.suites import products
from sim.errors import UsageError
from sim.products import Product
from sim.specs.models import get_model, list_models

TRUE = Smooth(2.6e12, 700e12, 3.0)
USES = dict(list(uses_of([get_model(name) for name in list_models()], [1, 2], None, None).items())[-80:])
POINTS = products.points_of(USES, "cuda")
SLOW = next(product for product, layers in USES.items() if layers.startswith("Qwen2.5-72B/tp2 gate_up"))


def made(folder: Path, unmeasured: dict[Product, int] | None = None) -> Path:
    """A file of them: half as long again at 448 rows of one, and of `unmeasured` products only so many numbers of rows."""
    data = products.dataset([], USES, POINTS, {"model": "a list", "device": "cuda", "gpu_name": "NVIDIA H100 80GB HBM3"})
    seconds = TRUE.seconds(*work_of(data)) * [1.5 if point == (SLOW, 448) else 1.0 for point in POINTS]
    seen: dict[Product, int] = {}
    for i, (listed, _) in enumerate(POINTS):
        product = Product(listed.k, listed.n, listed.bias)
        seen[product] = seen.get(product, 0) + 1
        if seen[product] > (unmeasured or {}).get(product, len(POINTS)):
            seconds[i] = np.nan
    made = data.assign({f"time_s_{name}": ("point", seconds) for name in ("median", "p25", "p75")})
    return write(made, folder / "products_list.nc", {})[0]


def shown(*args: str) -> click.testing.Result:
    return click.testing.CliRunner().invoke(command, list(args))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("whole"))


def test_a_line_each_within_80_columns_says_which_rows_are_slow(whole: Path) -> None:
    said = shown(str(whole))
    assert said.exit_code == 0, said.output
    lines = said.output.splitlines()[2:]
    assert len(lines) == 81
    assert max(map(len, lines)) <= WIDTH
    slow = [line.split() for line in lines[1:] if "+50%" in line]
    assert [line[:2] for line in slow] == [[str(SLOW.k), str(SLOW.n)]]
    assert slow[0][-5:-1] == ["1", "+50%", "448", "Qwen2.5-72B/tp2"]
    assert slow[0][2:4] == ["2600", "700"]


def test_a_model_of_the_list_is_shown_by_iterations(whole: Path) -> None:
    said = shown(str(whole), "--model", "Qwen2.5-72B/tp2")
    assert said.exit_code == 0, said.output
    assert "qkv, o, gate_up, down of 80 layers" in said.output
    assert [line.split()[0] for line in said.output.splitlines()[5:]] == ["448"]
    assert depth("llama3.1-8b") == depth("Llama-3.1-8B/tp4") == 32
    with pytest.raises(UsageError, match="unknown model 'nobody'"):
        depth("nobody")


def test_products_hardly_measured_have_no_rates_and_are_not_packed(tmp_path: Path) -> None:
    two, few, enough = (Product(p.k, p.n, p.bias) for p in (SLOW, *list(USES)[:2]))
    path = made(tmp_path, {two: 2, few: LEAST_ROWS - 1, enough: LEAST_ROWS})
    (line,) = [line.split() for line in shown(str(path)).output.splitlines() if "Qwen2.5-72B/tp2 gate_up" in line]
    assert line == [str(two.k), str(two.n), "0", "Qwen2.5-72B/tp2", "gate_up"]
    table = packed([path])
    found = set(zip(table["k"].tolist(), table["n"].tolist(), table["bias"].tolist(), strict=True))
    assert len(found) == len(USES) - 2
    assert enough in found
    assert not {two, few} & found
    np.testing.assert_allclose(table["bytes_per_s"][np.isfinite(table["seconds"]).sum(axis=1) > LEAST_ROWS], TRUE.bytes_per_s, rtol=0.01)
