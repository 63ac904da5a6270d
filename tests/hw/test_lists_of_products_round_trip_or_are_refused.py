"""`hw.products_list` writes what suite `products` reads; a file that is no such list is refused by the line at fault."""

from pathlib import Path

import click.testing
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hw.products_file import models_of, read_products, write_products
from hw.products_list import command, uses_of
from hw.suites import products
from hw.suites.products import Product
from sim.errors import UsageError
from sim.products import layers_of, measured
from sim.specs.gpus import get_gpu
from sim.specs.models import get_model, list_models
from tests.cli import run as simctl

HEAD = "k,n,bias,dtype,layers\n"
NAMES = st.text("abcXYZ019.-/", min_size=1, max_size=12).map(lambda name: f"{name} qkv")
PRODUCTS = st.builds(Product, st.integers(1, 2**20), st.integers(1, 2**20), st.booleans(), st.sampled_from(("bfloat16", "float32")))


def listed(folder: Path, *args: str) -> click.testing.Result:
    return click.testing.CliRunner().invoke(command, [*args, "-o", str(folder / "list.csv")])


@given(st.dictionaries(PRODUCTS, st.lists(NAMES, min_size=1, max_size=4).map(", ".join), min_size=1, max_size=20))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, uses: dict[Product, str]) -> None:
    path = tmp_path_factory.mktemp("lists") / "products.csv"
    write_products(path, uses)
    assert list(read_products(path).items()) == list(uses.items())


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "its first line must be k,n,bias,dtype,layers"),
        ("n,k,bias,dtype,layers\n", "its first line must be"),
        (HEAD, "holds no product"),
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
        read_products(path)


def test_models_split_over_gpus_stand_by_that_and_windowed_layers_once(tmp_path: Path) -> None:
    assert listed(tmp_path, "--model", "Gemma-3-4B,Qwen2.5-14B", "--tp", "1,2").exit_code == 0
    found = read_products(tmp_path / "list.csv")
    assert found[Product(2560, 4096, False, "bfloat16")] == "Gemma-3-4B qkv"
    assert found[Product(5120, 3584, True, "bfloat16")] == "Qwen2.5-14B/tp2 qkv"
    assert models_of(found.values()) == ["Gemma-3-4B", "Qwen2.5-14B", "Gemma-3-4B/tp2", "Qwen2.5-14B/tp2"]


def test_every_product_of_the_catalogue_is_listed_once_but_for_what_was_measured_or_does_not_fit() -> None:
    specs, h100 = [get_model(name) for name in list_models()], get_gpu("H100")
    everything = {Product(*layer.product, "bfloat16") for spec in specs for layer in layers_of(spec)}
    assert set(uses_of(specs, [1], None, None)) == everything
    left = uses_of(specs, [1], None, h100)
    assert set(left) == everything - {Product(*product, "bfloat16") for product in measured()["H100"]}
    held = set(models_of(uses_of(specs, [1], h100, None).values()))
    assert held == {spec.name for spec in specs if spec.resident_bytes(2) <= h100.memory_bytes and layers_of(spec)}


def test_a_list_is_bounded_in_time_and_continued_by_another(tmp_path: Path) -> None:
    said = listed(tmp_path, "--model", "Qwen3-4B,Qwen3-32B", "--most-s", "12")
    assert said.exit_code == 0
    short = read_products(tmp_path / "list.csv")
    assert products.LEAST_PASSES * products.pass_s(products.points_of(short, "cuda")) <= 12
    short_path = (tmp_path / "list.csv").rename(tmp_path / "short.csv")
    listed(tmp_path, "--model", "Qwen3-4B,Qwen3-32B", "--without", str(short_path))
    rest = read_products(tmp_path / "list.csv")
    assert list(short | rest) == list(uses_of([get_model("Qwen3-4B"), get_model("Qwen3-32B")], [1], None, None))


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("--tp", "0"), "--tp wants numbers of GPUs from 1 to 64, comma-separated, not '0'"),
        (("--tp", ","), "--tp wants numbers of GPUs"),
        (("--model", "Qwen9"), "unknown model 'Qwen9'"),
        (("--fits", "H900"), "unknown GPU 'H900'"),
        (("--least-params", "5000"), "no model of that size"),
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

    uses = {Product(64, 96, True, "bfloat16"): "a qkv, b/tp2 qkv", Product(96, 64, False, "float32"): "a down"}
    write_products(tmp_path / "products_some.csv", uses)
    args = ("measure", "--hw", "cpu", "--suite", "products", "--products", str(tmp_path / "products_some.csv"), "-o", str(tmp_path))
    done = simctl(*args, "--budget", "4")
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
        (("--suite", "products", "--model", "tiny-25m"), "give one of them"),
        (("--suite", "floor"), "is for the suite products, alone"),
        (("--suite", "products,floor"), "is for the suite products, alone"),
    ],
)
def test_a_list_goes_with_its_suite_alone_and_without_models(tmp_path: Path, more: tuple[str, ...], says: str) -> None:
    write_products(tmp_path / "list.csv", {Product(64, 96, True, "bfloat16"): "a qkv"})
    result = simctl("measure", "--hw", "cpu", "--products", str(tmp_path / "list.csv"), "-o", str(tmp_path), *more)
    assert result.code == 2
    assert says in result.stderr


def test_a_missing_list_is_one_line(tmp_path: Path) -> None:
    result = simctl("measure", "--hw", "cpu", "--suite", "products", "--products", str(tmp_path / "none.csv"), "-o", str(tmp_path))
    assert result.code == 2
    assert "none.csv" in result.stderr
    assert "Traceback" not in result.stderr
