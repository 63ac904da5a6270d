"""The packaged table of matrix products is what the measured files say, cards of a kind agree, and odd rows are told by odd rows."""

from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest

from hw.artifact import load
from sim.cost.gemm import PACKAGED, Gemm, gemms_of, measured, nearest
from sim.specs.models import get_model
from studies.measured_gemms import packed

ROOT = Path(str(files("scenarios"))) / "data" / "measured"
FILES = sorted(ROOT.glob("*/products*.nc"))


def test_the_table_is_made_of_the_packaged_files():
    made = packed(FILES)
    with np.load(Path(str(files("sim"))) / PACKAGED, allow_pickle=False) as kept:
        assert set(kept.files) == set(made)
        for name, values in made.items():
            if values.dtype.kind == "f":
                np.testing.assert_allclose(kept[name], values, rtol=1e-5)  # of times kept as float32
            else:
                np.testing.assert_array_equal(kept[name], values)


@pytest.mark.parametrize("gpu", ["H100", "H200"])
@pytest.mark.parametrize("name", ["Qwen2.5-7B", "Llama-3.1-8B", "Qwen3-14B", "Qwen3-Coder-30B-A3B"])
def test_the_products_of_the_models_of_the_grids_are_known(gpu, name):
    assert {product for product, _ in gemms_of(get_model(name))} <= measured()[gpu].keys()


@pytest.mark.parametrize("gpu", ["h100", "h200"])
@pytest.mark.parametrize(("names", "points"), [(("products", "products_1"), 2000), (("products_1", "products_2"), 1400)])
def test_two_cards_of_a_kind_agree(gpu, names, points):
    """The last two by two protocols, and by the products of one model."""
    times = [{}, {}]
    for one, path in zip(times, (ROOT / gpu / f"{name}.nc" for name in names), strict=True):
        data = load(path, "products")
        columns = (data[name].values.tolist() for name in ("k", "n", "bias", "rows", "time_s_median"))
        one |= {(k, n, bias, rows): seconds for k, n, bias, rows, seconds in zip(*columns, strict=True) if np.isfinite(seconds)}
    ratios = np.log([times[0][key] / times[1][key] for key in times[0].keys() & times[1].keys()])
    assert ratios.size > points
    assert abs(np.median(ratios)) < 0.03
    assert np.quantile(np.abs(ratios - np.median(ratios)), 0.9) < 0.03


def test_beyond_the_graphs_numbers_that_no_tile_divides_tell_each_other_best():
    """Each left out in turn, told by the nearest of its kind and by the nearest multiple of eight."""
    own, eights = [], []
    for products in measured().values():
        for seen in products.values():
            odd = np.flatnonzero((seen.rows > 512) & (seen.rows < 1104) & (seen.rows % 8 > 0))
            per_row = np.log(seen.seconds / seen.rows)
            for i in odd:
                others = np.delete(np.arange(seen.rows.size), i)
                stand_in = others[nearest(seen.rows[others], seen.rows[i : i + 1])][0]
                eight = others[seen.rows[others] % 8 == 0]
                closest = eight[np.abs(seen.rows[eight] - seen.rows[i]).argmin()]
                own.append(abs(per_row[i] - per_row[stand_in]))
                eights.append(abs(per_row[i] - per_row[closest]))
    assert np.mean(own) < np.mean(eights)


def test_a_product_of_several_files_is_their_geometric_mean():
    seconds = []
    for path in FILES:
        if path.parent.name == "h100":
            data = load(path, "products")
            at = (data.k.values == 4096) & (data.n.values == 28672) & (data.rows.values == 448)
            seconds += data.time_s_median.values[at].tolist()
    assert len(seconds) >= 3
    seen = measured()["H100"][Gemm(4096, 28672, False)]
    assert seen.seconds[seen.rows == 448][0] == pytest.approx(np.exp(np.mean(np.log(seconds))), rel=1e-6)
