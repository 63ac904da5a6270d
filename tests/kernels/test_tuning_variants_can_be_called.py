"""Every variant of the tuning run is a call of dense decode that is right: it would be left out of the table otherwise."""

import pytest
import torch

from kernels import reference, tune_dense
from kernels.dense_decode import ERROR_BOUND, dense_decode
from tests.kernels import caches


@pytest.mark.parametrize("name", list(tune_dense.VARIANTS))
def test_variant(name: str) -> None:
    cache = caches.make(4, [70], heads_kv=4, group=2, d=16, page=32)
    options = {"queued": 0.0, "bulk": True, "heads": 1, "tile": 32, "splits": 1, **tune_dense.VARIANTS[name]}
    chunks = {"chunks": int(options["each"]) // 2} if "each" in options else {}
    options = {key: value for key, value in options.items() if key not in tune_dense.ALONE} | chunks
    assert (
        reference.relative_error(dense_decode(*cache.args, **options), reference.dense_decode(*cache.args)) <= ERROR_BOUND[torch.bfloat16]
    )


def test_summary_counts_the_cells_that_are_no_slower() -> None:
    rows = [{"batch": 1, "context": 2**c, "variant": "a", "over_library": r} for c, r in ((15, 0.5), (17, 2.0), (17, 0.5), (20, 1.1))]
    line = tune_dense.summary(rows).splitlines()[1].split()
    assert line == ["a", "0.5000", "1.0000", "1.1000", "2.0000", "2", "of", "4"]
