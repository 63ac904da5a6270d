"""`python -m hw.products_pack ROOT OUT`: the table of sim.products, from every measured file of the suite products below ROOT.

Files of one GPU are taken together: a point's time is the geometric mean of what they say. Products are told by their sizes and their bias;
those of other element types than bfloat16 are left out, and those that were hardly measured.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from hw.exits import call
from hw.products_table import Array, Smooth, fit
from hw.profile_table import opened
from sim.errors import UsageError
from sim.products import EXPONENT, Product, known_to

DTYPE = "bfloat16"
LEAST_ROWS = 40  # numbers of rows that a product must have been measured at: few tell nothing of those between


def packed(files: Sequence[Path]) -> dict[str, Any]:
    """The arrays of the packaged table, from files of the suite. Raises UsageError, naming the file, for one that is none."""
    from sim.specs.gpus import get_gpu  # a bare host, which measures, need not have what reads the catalogue

    logs: dict[str, dict[tuple[Product, int], list[float]]] = {}
    for path in files:
        data = opened(path, "products")
        own = logs.setdefault(known_to(get_gpu(str(data.attrs["gpu_name"]))), {})
        columns = [data[name].values.tolist() for name in ("k", "n", "bias", "rows", "dtype", "time_s_median")]
        for k, n, bias, rows, dtype, seconds in zip(*columns, strict=True):
            if str(dtype) == DTYPE and np.isfinite(seconds):
                own.setdefault((Product(k, n, bool(bias)), rows), []).append(float(np.log(seconds)))
    if not any(logs.values()):
        raise UsageError(f"no {DTYPE} products were measured in these files")
    for own in logs.values():
        seen = Counter(product for product, _ in own)
        for product, r in [key for key in own if seen[key[0]] < LEAST_ROWS]:
            del own[product, r]
    rows = sorted({rows for own in logs.values() for _, rows in own})
    names = sorted({(gpu, product) for gpu, own in logs.items() for product, _ in own})
    seconds = np.full((len(names), len(rows)), np.nan)
    for i, (gpu, product) in enumerate(names):
        for j, r in enumerate(rows):
            if found := logs[gpu].get((product, r)):
                seconds[i, j] = np.exp(np.mean(found))
    smooth = [_smooth(product, np.array(rows, dtype=float), each) for (_, product), each in zip(names, seconds, strict=True)]
    return {
        "gpu": np.array([gpu for gpu, _ in names]),
        "k": np.array([product.k for _, product in names], dtype=np.int32),
        "n": np.array([product.n for _, product in names], dtype=np.int32),
        "bias": np.array([product.bias for _, product in names], dtype=bool),
        "bytes_per_s": np.array([one.bytes_per_s for one in smooth]),
        "flops_per_s": np.array([one.flops_per_s for one in smooth]),
        "rows": np.array(rows, dtype=np.int32),
        "seconds": seconds.astype(np.float32),
    }


def _smooth(product: Product, rows: Array, seconds: Array) -> Smooth:
    ran = np.isfinite(seconds)
    size = 2.0 * product.k * product.n  # bytes of the weight, and flops of a row
    return fit(np.full(int(ran.sum()), size), size * rows[ran], seconds[ran], exponents=(EXPONENT,))


@click.command("products_pack", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("root", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("out", type=click.Path(dir_okay=False, path_type=Path))
def command(root: Path, out: Path) -> None:
    """Write the table of measured matrix products to OUT (.npz), from all */products*.nc below ROOT."""
    files = sorted(root.glob("*/products*.nc"))
    if not files:
        raise UsageError(f"{root}: holds no */products*.nc")
    arrays = packed(files)
    temporary = out.with_name(out.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)
        os.replace(temporary, out)
    finally:
        temporary.unlink(missing_ok=True)
    click.echo(f"{len(files)} files, {arrays['seconds'].shape[0]} products at {arrays['rows'].size} numbers of rows: {out}")


def main() -> None:
    """Run the command."""
    call(command, "python -m hw.products_pack")


if __name__ == "__main__":
    main()
