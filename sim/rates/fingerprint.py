"""A fingerprint of what the formula says, so that rates learnt with one formula are never used with another.

It hashes prices of fixed iterations, not source text: renaming or reformatting keeps it, changing a term does not.
"""

from __future__ import annotations

import hashlib
from functools import cache

from sim.cost.batch import decode_batch, mixed_batch
from sim.cost.gemm import digest
from sim.cost.rates import UNITS, Rates
from sim.cost.step_time import step_terms
from sim.cost.work import iteration_work
from sim.files import package_path
from sim.specs.attention_policy import blocks, dense, sink_window
from sim.specs.model import Attention, DenseMlp, GatedDeltaNet, LayerGroup, ModelSpec, MoeMlp
from sim.specs.precision import Precision

# A model with one layer group of every kind that the work knows, small enough that every term is visible in the price.
PROBE = ModelSpec(
    name="probe",
    hidden=1024,
    vocab=32_000,
    groups=(
        LayerGroup(6, Attention(16, 4, 64), DenseMlp(4096)),
        LayerGroup(4, Attention(16, 4, 64, window=512), MoeMlp(32, 4, 512, shared_intermediate=512)),
        LayerGroup(2, GatedDeltaNet(4, 8, 64, 64), DenseMlp(4096)),
    ),
    tied_embeddings=False,
    max_context=2**20,
)
SIGNIFICANT = 9  # digits that must agree; platforms differ in the last ones


@cache
def formula_fingerprint() -> str:
    """sha256 of the priced probe iterations, as hex."""
    # distinct rates of comparable cost, so that no term hides behind another
    rates = Rates(**{name: _scale(unit) * (1 + i / 7) for i, (name, unit) in enumerate(UNITS.items())})
    lines = [f"GEMM times {digest()}"]
    for policy in (dense(), sink_window(), blocks(8), blocks(8, "host")):
        for tp in (1, 2):
            for shape in (
                decode_batch(PROBE, 3.0, 5000.0, policy),
                mixed_batch(PROBE, [100.0, 70_000.0], [(300, 900, 1)], policy),
                mixed_batch(PROBE, [100.0], [(1500, 1900, 0)], policy),
            ):
                terms = step_terms(iteration_work(PROBE, shape, Precision("fp8", "bf16"), policy, tp), rates)
                lines += [f"{name} {value:.{SIGNIFICANT}e}" for name, value in zip(terms._fields, terms, strict=True)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


@cache
def code_fingerprint() -> str:
    """sha256 over the source of the package `sim` and the packaged data that it reads, as hex: another one may answer otherwise."""
    digest = hashlib.sha256()
    for place in (("sim",), ("scenarios", "data", "posteriors"), ("scenarios", "data", "reference")):
        root = package_path(*place)
        for path in sorted(each for each in root.rglob("*") if each.is_file() and each.suffix != ".pyc"):
            digest.update(f"{path.relative_to(root).as_posix()} {path.stat().st_size}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _scale(unit: str) -> float:
    if unit.startswith("bytes/s"):
        return 1e11
    if unit.startswith("flop/s"):
        return 1e12
    return 1e-4
