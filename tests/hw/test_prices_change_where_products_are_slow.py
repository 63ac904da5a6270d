"""`hw.products_price`: a model whose products were made slow at one number of rows is dearer there and nowhere else, and said to be."""

from dataclasses import replace
from pathlib import Path

import click.testing
import numpy as np
import pytest

from hw.products_price import change, command, said, table
from sim.bill import CAPTURED
from sim.errors import UsageError
from sim.products import Measured, Product, products_of, smooth_s
from sim.specs.models import get_model
from tests.price.shapes import plausible_rates

RATES = replace(plausible_rates(), tile_share=0.0)  # nothing stands for what was not measured
ROWS = np.array([*CAPTURED, 600, 1024], dtype=float)
BANDWIDTH, RATE = 2.6e12, 700e12


def known(model: str, tp: int = 1, slow: float = 448.0) -> dict[Product, Measured]:
    """Smooth but at one number of rows, where all take twice as long."""
    found = {}
    for product, _ in products_of(get_model(model), tp):
        seconds = smooth_s(product, ROWS, BANDWIDTH, RATE) * np.where(slow == ROWS, 2.0, 1.0)
        found[product] = Measured(ROWS, seconds, BANDWIDTH, RATE, BANDWIDTH)
    return found


@pytest.mark.parametrize(("slow", "graphs"), [(448.0, True), (600.0, False)])
@pytest.mark.parametrize(("model", "tp"), [("Llama-3.1-8B", 1), ("Qwen2.5-72B", 4)])
def test_the_price_changes_at_the_slow_rows_alone(model: str, tp: int, slow: float, graphs: bool) -> None:
    found = change(get_model(model), tp, known(model, tp, slow), RATES)
    assert found is not None
    assert found.beyond(1e-9, graphs) == [slow]
    assert found.beyond(1e-9, not graphs) == []
    rows, most = found.most(graphs)
    assert rows == slow
    assert 0.1 < most < 1.1
    cells = table([found], 0.02).splitlines()[1].split()
    assert cells[:2] == [model, str(tp)]
    assert (cells[2:5] if graphs else cells[5:8]) == ["1", f"{most:+.1%}", str(int(slow))]


def test_a_model_with_a_product_not_measured_is_none_of_them() -> None:
    lacking = dict(list(known("Llama-3.1-8B").items())[:3])
    assert change(get_model("Llama-3.1-8B"), 1, lacking, RATES) is None
    assert change(get_model("DeepSeek-V3"), 1, lacking, RATES) is None


@pytest.mark.parametrize("content", [b"", b"no table", b"PK\x03\x04 cut off"])
def test_another_file_than_a_table_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other.npz"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"other\.npz: not a table of products"):
        command.main(["--table", str(path)], standalone_mode=False)


def test_the_rows_named_are_those_of_most_models() -> None:
    slow = {"Qwen3-8B": 448.0, "Phi-4": 448.0, "Qwen3-4B": 400.0}
    each = [change(get_model(name), 1, known(name, slow=rows), RATES) for name, rows in slow.items()]
    lines = said([found for found in each if found], 0.02).splitlines()
    assert lines == [
        "in graphs: 3 of 3 change by more than 2% somewhere, most often at 448 (2), 400 (1)",
        "beyond them: 0 of 3 change by more than 2% somewhere, most often at none",
    ]


def test_the_packaged_table_changes_prices_at_448_rows_of_an_8b_on_an_h100() -> None:
    shown = click.testing.CliRunner().invoke(command, ["--tp", "1"])
    assert shown.exit_code == 0, shown.output
    (line,) = [line.split() for line in shown.output.splitlines() if line.startswith("Llama-3.1-8B")]
    assert line[4] == "448"
    assert float(line[3].rstrip("%")) > 5
    refused = click.testing.CliRunner().invoke(command, ["--gpu", "A10"])
    assert isinstance(refused.exception, UsageError)
    assert str(refused.exception).startswith("no products of 'A10' were measured; of H100, H200")
