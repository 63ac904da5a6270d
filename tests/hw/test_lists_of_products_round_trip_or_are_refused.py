"""`python -m hw.gemm_lists list` writes what suite `products` reads; a file that is no such list is refused by the line at fault."""

from pathlib import Path

import click.testing
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from hw.artifact import SCHEMA, write
from hw.gemm_lists import ListedGemm, command, models_of, read_gemms, uses_of, written
from sim.cost.gemm import layers_of
from sim.errors import UsageError
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model, list_models
from studies.measured_gemms import LEAST_ROWS, packed
from tests.cli import run as simctl

HEAD = "k,n,bias,dtype,layers\n"
NAMES = st.text("abcXYZ019.-/", min_size=1, max_size=12).map(lambda name: f"{name} qkv")
PRODUCTS = st.builds(ListedGemm, st.integers(1, 2**20), st.integers(1, 2**20), st.booleans(), st.sampled_from(("bfloat16", "float32")))


def listed(folder: Path, *args: str) -> click.testing.Result:
    return click.testing.CliRunner().invoke(command, ["list", *args, "-o", str(folder / "list.csv")])


@given(st.dictionaries(PRODUCTS, st.lists(NAMES, min_size=1, max_size=4).map(", ".join), min_size=1, max_size=20))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, uses: dict[ListedGemm, str]) -> None:
    path = tmp_path_factory.mktemp("lists") / "products.csv"
    path.write_text(written(uses))
    assert list(read_gemms(path).items()) == list(uses.items())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "its first line must be k,n,bias,dtype,layers"),
        ("n,k,bias,dtype,layers\n", "its first line must be"),
        (HEAD, "holds no products"),
        (HEAD + "1,2,0,bfloat16\n", "line 2: has 4 fields, not 5"),
        (HEAD + "nan,2,0,bfloat16,a qkv\n", "line 2: k: needs a whole number"),
        (HEAD + "1,2,0,bfloat16,a qkv\n1,2.5,0,bfloat16,a o\n", "line 3: n: needs a whole number"),
        (HEAD + "1,-2,0,bfloat16,a qkv\n", "line 2: n: needs a whole number"),
        (HEAD + "0,2,0,bfloat16,a qkv\n", "line 2: k: needs a whole number"),
        (HEAD + "99999999,2,0,bfloat16,a qkv\n", "line 2: k: needs a whole number"),
        (HEAD + "1,2,yes,bfloat16,a qkv\n", "line 2: bias: needs 0 or 1"),
        (HEAD + "1,2,0,fp8,a qkv\n", "line 2: dtype: needs bfloat16 or float32"),
        (HEAD + "1,2,0,bfloat16,qkv\n", "line 2: layers: needs MODEL LAYER"),
        (HEAD + "1,2,0,bfloat16,a qkv\n\n1,2,0,bfloat16,b qkv\n", "line 4: this product stands above already"),
        (HEAD + '1,2,0,bfloat16,"a qkv\n', "not CSV"),
        (b"\x89HDF\r\n\xff\xfe", "not CSV"),
    ],
)
def test_a_file_that_is_no_such_list_is_refused_by_name_and_line(tmp_path: Path, text: str | bytes, says: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(UsageError, match=f"bad.csv: .*{says}"):
        read_gemms(path)


def test_models_split_over_gpus_stand_by_that_and_windowed_layers_once(tmp_path: Path) -> None:
    assert listed(tmp_path, "--model", "Gemma-3-4B,Qwen2.5-14B", "--tp", "1,2").exit_code == 0
    found = read_gemms(tmp_path / "list.csv")
    assert found[ListedGemm(2560, 4096, False, "bfloat16")] == "Gemma-3-4B qkv"
    assert found[ListedGemm(5120, 3584, True, "bfloat16")] == "Qwen2.5-14B/tp2 qkv"
    assert models_of(found.values()) == ["Gemma-3-4B", "Qwen2.5-14B", "Gemma-3-4B/tp2", "Qwen2.5-14B/tp2"]


def test_every_product_of_the_catalogue_is_listed_once_but_for_what_does_not_fit() -> None:
    specs, h100 = [get_model(name) for name in list_models()], get_gpu("H100")
    assert set(uses_of(specs, [1], None)) == {ListedGemm(*layer.gemm, "bfloat16") for spec in specs for layer in layers_of(spec)}
    held = set(models_of(uses_of(specs, [1], h100).values()))
    assert held == {spec.name for spec in specs if spec.resident_bytes(2) <= h100.memory_bytes and layers_of(spec)}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--tp", "0"), "--tp wants numbers of GPUs from 1 to 64, comma-separated, not '0'"),
        (("--tp", ","), "--tp wants numbers of GPUs"),
        (("--model", "Qwen9"), "unknown model 'Qwen9'"),
        (("--fits", "H900"), "unknown GPU 'H900'"),
        (("--model", "DeepSeek-V3"), "no product is left to list"),
        (("--tp", "3", "--model", "Llama-3.1-8B"), "no product is left to list"),
    ],
)
def test_what_cannot_be_listed_is_one_line(tmp_path: Path, args: tuple[str, ...], says: str) -> None:
    result = listed(tmp_path, *args)
    assert isinstance(result.exception, UsageError)
    assert str(result.exception).startswith(says)
    assert not (tmp_path / "list.csv").exists()


def test_the_suite_measures_a_list_on_this_cpu_and_names_the_file_after_it(tmp_path: Path) -> None:
    from hw.artifact import load

    pytest.importorskip("torch")
    uses = {ListedGemm(64, 96, True, "bfloat16"): "a qkv, b/tp2 qkv", ListedGemm(96, 64, False, "float32"): "a down"}
    (tmp_path / "products_some.csv").write_text(written(uses))
    args = ("measure", "--hw", "cpu", "--suite", "products", "--products", str(tmp_path / "products_some.csv"), "-o", str(tmp_path))
    done = simctl(*args)
    assert done.code == 0, done.stderr
    data = load(tmp_path / "products_some.nc", "products")
    assert list(dict.fromkeys(zip(data.k.values.tolist(), data.n.values.tolist(), data.bias.values.tolist(), strict=True))) == [
        (64, 96, 1),
        (96, 64, 0),
    ]
    assert data.attrs["model"] == "a, b/tp2"
    assert data.attrs["weight_dtype"] == "bfloat16, float32"


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--suite", "products", "--model", "tiny-25m"), "alone and without --model"),
        (("--suite", "floor"), "is for the suite products, alone"),
        (("--suite", "products,floor"), "is for the suite products, alone"),
    ],
)
def test_a_list_goes_with_its_suite_alone_and_without_models(tmp_path: Path, more: tuple[str, ...], says: str) -> None:
    (tmp_path / "list.csv").write_text(written({ListedGemm(64, 96, True, "bfloat16"): "a qkv"}))
    result = simctl("measure", "--hw", "cpu", "--products", str(tmp_path / "list.csv"), "-o", str(tmp_path), *more)
    assert result.code == 2
    assert says in result.stderr


def test_a_missing_list_is_one_line(tmp_path: Path) -> None:
    result = simctl("measure", "--hw", "cpu", "--suite", "products", "--products", str(tmp_path / "none.csv"), "-o", str(tmp_path))
    assert result.code == 2
    assert "none.csv" in result.stderr
    assert "Traceback" not in result.stderr


def test_products_hardly_measured_are_not_packed(tmp_path: Path) -> None:
    """Times are found again; a product at fewer than LEAST_ROWS numbers of rows is left out."""
    listed = [ListedGemm(4096, 6144, False, "bfloat16"), ListedGemm(4096, 4096, False, "bfloat16")]
    points = [
        (product, rows)
        for product, most in zip(listed, (2 * LEAST_ROWS, LEAST_ROWS - 1), strict=True)
        for rows in range(8, 8 + 8 * most, 8)
    ]
    times = [1e-5 + 1e-8 * rows for _, rows in points]
    columns = {"k": [p.k for p, _ in points], "n": [p.n for p, _ in points], "bias": [0 for _ in points], "rows": [r for _, r in points]}
    variables = {name: ("point", np.array(values, dtype=np.int32)) for name, values in columns.items()}
    variables |= {
        "dtype": ("point", np.array(["bfloat16"] * len(points), dtype=object)),
        "time_s": (("point", "visit"), np.array(times)[:, None]),
    }
    data = xr.Dataset(variables, attrs={"schema": SCHEMA, "suite": "products", "gpu_name": "NVIDIA H100 80GB HBM3"})
    table = packed([write(data, tmp_path / "products.nc")])
    assert (table["k"].tolist(), table["n"].tolist()) == ([4096], [6144])
    np.testing.assert_allclose(table["seconds"], [[1e-5 + 1e-8 * rows for rows in table["rows"]]], rtol=1e-6)
    with pytest.raises(UsageError, match="no bfloat16 products were measured"):
        packed([write(data.isel(point=slice(3)), tmp_path / "few.nc")])
