"""A list of matrix products to measure, as CSV: what suite `products` takes where no model of its own has them (`hw.products_list`)."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from hw.suites.products import Product
from sim.errors import UsageError

COLUMNS = ("k", "n", "bias", "dtype", "layers")
DTYPES = ("bfloat16", "float32")
MOST_PRODUCTS, MOST_SIDE, MOST_BYTES = 2000, 1 << 20, 1 << 22


def write_products(path: Path, uses: Mapping[Product, str]) -> None:
    """Write products and whose they are, all or nothing."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("w", newline="", encoding="utf-8") as file:
            out = csv.writer(file, lineterminator="\n")
            out.writerow(COLUMNS)
            out.writerows((p.k, p.n, int(p.bias), p.dtype, layers) for p, layers in uses.items())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_products(path: Path) -> dict[Product, str]:
    """Products of a file and whose they are, in its order. Raises UsageError naming the file and the line at fault."""
    if path.stat().st_size > MOST_BYTES:
        raise UsageError(f"{path.name}: larger than {MOST_BYTES} bytes: not a list of products")
    try:
        rows = list(csv.reader(path.read_text(encoding="utf-8-sig").splitlines(), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path.name}: not CSV ({error})") from None
    if not rows or tuple(name.strip() for name in rows[0]) != COLUMNS:
        raise UsageError(f"{path.name}: not a list of products (its first line must be {','.join(COLUMNS)})")
    found: dict[Product, str] = {}
    for number, row in enumerate(rows[1:], start=2):
        if row:
            where = f"{path.name}: line {number}"
            product, layers = _product(where, [field.strip() for field in row])
            if product in found:
                raise UsageError(f"{where}: this product stands above already")
            found[product] = layers
    if not found:
        raise UsageError(f"{path.name}: holds no product")
    if len(found) > MOST_PRODUCTS:
        raise UsageError(f"{path.name}: {len(found)} products, {MOST_PRODUCTS} at most")
    return found


def models_of(uses: Iterable[str]) -> list[str]:
    """Models named in texts like "a qkv, b qkv", each once."""
    return list(dict.fromkeys(use.rsplit(" ", 1)[0] for text in uses for use in text.split(", ")))


def _product(where: str, row: list[str]) -> tuple[Product, str]:
    if len(row) != len(COLUMNS):
        raise UsageError(f"{where}: has {len(row)} fields, not {len(COLUMNS)}")
    k, n, bias, dtype, layers = row
    for name, text in (("k", k), ("n", n)):
        if not (text.isascii() and text.isdigit() and len(text) < 9 and 1 <= int(text) <= MOST_SIDE):
            raise UsageError(f"{where}: {name}: needs a whole number from 1 to {MOST_SIDE}, not {text!r}")
    if bias not in ("0", "1"):
        raise UsageError(f"{where}: bias: needs 0 or 1, not {bias!r}")
    if dtype not in DTYPES:
        raise UsageError(f"{where}: dtype: needs {' or '.join(DTYPES)}, not {dtype!r}")
    if not layers or not all(len(use.rsplit(" ", 1)) == 2 for use in layers.split(", ")):
        raise UsageError(f"{where}: layers: needs MODEL LAYER, several after commas, not {layers!r}")
    return Product(int(k), int(n), bias == "1", dtype), layers
