"""Packaged table of measured GEMMs: `python -m studies.measured_gemms ROOT OUT.npz`, from all */products*.nc below ROOT."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hw.artifact import load
from hw.gemm_lists import DTYPE
from sim.cost import gemm
from sim.errors import UsageError
from sim.files import replacing
from sim.specs.gpus import get_gpu
from studies.program import program

LEAST_ROWS = 40  # numbers of rows that a GEMM must have been measured at: few say nothing of those between


def packed(files: Sequence[Path]) -> dict[str, Any]:
    """The arrays of the packaged table (sim.cost.gemm), from files of the suite. Raises UsageError, naming the file, for one that is none.

    Files of one GPU are taken together: a point's time is the geometric mean of what they say. Products of other element types than
    bfloat16 are left out, and those that were hardly measured.
    """
    logs: dict[str, dict[tuple[gemm.Gemm, int], list[float]]] = {}
    for path in files:
        data = load(path, "products")
        own = logs.setdefault(get_gpu(str(data.attrs["gpu_name"])).name, {})
        timed = data.isel(point=np.isfinite(data.time_s.values).any(axis=1) & (data["dtype"].values == DTYPE))
        medians = np.nanmedian(timed.time_s.values.astype(np.float64), axis=1)  # time_s_median is rounded
        columns = [timed[name].values.tolist() for name in ("k", "n", "bias", "rows")]
        for k, n, bias, rows, seconds in zip(*columns, medians.tolist(), strict=True):
            if seconds > 0:
                own.setdefault((gemm.Gemm(k, n, bool(bias)), rows), []).append(float(np.log(seconds)))
    for gpu, own in logs.items():
        seen = Counter(product for product, _ in own)
        logs[gpu] = {key: values for key, values in own.items() if seen[key[0]] >= LEAST_ROWS}
    rows = sorted({rows for own in logs.values() for _, rows in own})
    names = sorted({(gpu, product) for gpu, own in logs.items() for product, _ in own})
    if not names:
        raise UsageError(f"no {DTYPE} products were measured in these files")
    found = [[logs[gpu].get((product, r), [np.nan]) for r in rows] for gpu, product in names]
    seconds = np.exp([[np.mean(times) for times in row] for row in found])
    return {
        "gpu": np.array([gpu for gpu, _ in names]),
        "k": np.array([product.k for _, product in names], dtype=np.int32),
        "n": np.array([product.n for _, product in names], dtype=np.int32),
        "bias": np.array([product.bias for _, product in names], dtype=bool),
        "rows": np.array(rows, dtype=np.int32),
        "seconds": seconds.astype(np.float32),
    }


@program("studies.measured_gemms", "ROOT OUT.npz")
def main(argv: Sequence[str]) -> int:
    arrays = packed(sorted(Path(argv[0]).glob("*/products*.nc")))
    with replacing(Path(argv[1])) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)
    print(f"{arrays['seconds'].shape[0]} products at {arrays['rows'].size} numbers of rows: {argv[1]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
