"""A GPU's own rates, integrated out of the hierarchy, come back right: an engine's share has uniform ranks among its draws."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from scipy.stats import kstest

from calibrate.artifacts import write_posterior
from calibrate.sampling import Diagnostics, Settings
from sim.cost.provenance import Origin, Provenance
from sim.cost.rates import UNITS
from sim.rates.posterior import rates_from_file
from sim.specs.gpus import get_gpu
from studies.population.hierarchy import ENGINE_NOISE, drawn, size
from studies.population.kernel_efficiency import Estimate
from tests.calibrate.steps import TRUE

DRAWS, RUNS = 200, 300
GPU, KERNEL_ERROR, ENGINE_ERROR = "B200", 0.06, 0.04
RATES = ("beta", "linear_flops_per_s")
FOUND = {
    "mean": np.full((DRAWS, 2), np.log(0.7)),
    "between": np.full((DRAWS, 2), 0.15),
    "slope": np.broadcast_to([0.0, -0.1], (DRAWS, 2)),
    "stack": np.full((DRAWS, 2), -0.12),
}


@pytest.mark.parametrize("seen", ["kernel", "engine", "both", "neither"])
def test_ranks_of_an_engines_share_are_uniform(seen: str) -> None:
    rng = np.random.default_rng(5)
    ranks = []
    for _ in range(RUNS):
        kernel = np.log(0.7) - 0.1 * size(GPU) + 0.15 * rng.standard_normal()
        engine = kernel - 0.12 + ENGINE_NOISE * rng.standard_normal()
        kernels = [Estimate(GPU, "linear_flops_per_s", kernel + KERNEL_ERROR * rng.standard_normal(), KERNEL_ERROR, 10)]
        engines = [Estimate(GPU, "linear_flops_per_s", engine + ENGINE_ERROR * rng.standard_normal(), ENGINE_ERROR, 10)]
        kernels, engines = kernels if seen in ("kernel", "both") else [], engines if seen in ("engine", "both") else []
        ranks.append((drawn(RATES, FOUND, GPU, kernels, engines, rng)[:, 1] < engine).mean())
    assert kstest(ranks, "uniform").pvalue > 1e-3


def test_estimates_of_another_gpu_change_nothing() -> None:
    other = [Estimate("L4", "beta", 0.0, 0.01, 10)]
    with_it, without = (drawn(RATES, FOUND, GPU, list(seen), (), np.random.default_rng(0)) for seen in (other, ()))
    np.testing.assert_array_equal(with_it, without)


def test_a_populations_file_gives_smaller_gpus_more_of_their_matrix_peak(tmp_path: Path) -> None:
    values = {n: (("chain", "draw"), np.full((4, 100), 0.6 if v > 1e6 else v)) for n, v in TRUE.items()}
    values["slope"] = (("chain", "draw"), np.full((4, 100), -0.1))
    path = write_posterior(
        tmp_path / "p.nc", xr.Dataset(values), family="step-time", gpu="*",
        source=Provenance(Origin.IN_PROCESS, "posterior for a test"),
        sources=dict.fromkeys(UNITS, Provenance(Origin.IN_PROCESS, "learnt from a test")),
        data_fingerprint="0" * 64, diagnostics=Diagnostics(1.001, 1500.0, 0),
        settings=Settings(), weight_dtype="bf16", reference_flops=989e12,
    )  # fmt: skip
    for name in ("A10", "B200"):
        gpu = get_gpu(name)
        rates = rates_from_file(path, gpu)
        assert rates.point.linear_flops_per_s == pytest.approx(0.6 * (gpu.flops["bf16"] / 989e12) ** -0.1 * gpu.flops["bf16"], rel=1e-6)
        assert rates.point.beta == pytest.approx(0.6 * gpu.memory_bandwidth, rel=1e-6)
