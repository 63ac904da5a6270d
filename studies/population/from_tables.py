"""Posterior of a GPU from kernel tables: its own kernels, and the hierarchy over the GPUs of all tables and of packaged engine grids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from calibrate.sampling import Settings
from sim.errors import UsageError
from sim.specs.gpu import GpuSpec
from studies.kernel_tables.latency_tables import Table
from studies.population.build import MEASURED, SETTINGS, fingerprint, from_posterior, write_pooled
from studies.population.hierarchy import learn
from studies.population.kernel_efficiency import efficiencies, estimates


def learn_gpu(tables: Sequence[Table], gpu: GpuSpec, out: Path, settings: Settings = SETTINGS) -> Path:
    """Learn from the tables and write the posterior. UsageError where they show no rate of `gpu`, and for a GPU stepped in process."""
    if gpu.name in MEASURED:
        raise UsageError(f"{gpu.name} has packaged engine grids, which say more than kernels: simctl calibrate --hw {gpu.name}")
    kernels = estimates(efficiencies(tables))
    if not any(each.gpu == gpu.name for each in kernels):
        raise UsageError(f"no table shows a rate of {gpu.name}")
    engines = [each for name in MEASURED for each in from_posterior(name)]
    population = learn(kernels, engines, settings)
    population.diagnostics.require()
    return write_pooled(out, gpu.name, population, fingerprint(kernels, engines))
