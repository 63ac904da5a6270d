"""A fingerprint of what the formula says, so that rates learnt with one formula are never used with another.

It hashes prices of fixed iterations (sim.rates.probes), not source text: renaming or reformatting keeps it, changing a term does not.
`python -m studies.restamp` stamps packaged files anew where a change left the iterations that they were learnt from priced as they were.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from functools import cache

import numpy as np

from sim.cost.all_reduce import GROUPS, group_factor
from sim.cost.attention import BLOCKS_AT_ONCE, reread
from sim.cost.batch import decode_batch
from sim.cost.decode_step import decode_step_work
from sim.cost.gemm import digest, nearest, typical_s
from sim.cost.graphs import GRAPH_TOKENS, captured_padding
from sim.cost.rates import UNITS, Rates
from sim.cost.step_time import step_terms, total_s
from sim.cost.work import iteration_work
from sim.files import cache_home, package_path, replacing
from sim.rates.probes import BEST, CHIPS, MEASURED_ROWS, NOT_IN_TABLE, OF_CHIP, PLAIN, ROWS, TABLE, probes, rereads
from sim.specs.attention_policy import blocks, dense
from sim.specs.decode_stack import STACKS
from sim.specs.gpu import GpuSpec
from sim.specs.gpus import get_gpu
from sim.specs.precision import Precision

SIGNIFICANT = 9  # digits of an iteration's time that must agree; platforms differ in the last ones
SOURCES = ("cost", "specs", "data", "rates/probes.py", "rates/fingerprint.py", "namespaces.py")
MOST_KEPT = 20  # fingerprints, of as many versions of the sources
LAUNCH_S = 5e-3  # launching a layer shows beside the GPU's time


@cache
def formula_fingerprint() -> str:
    """sha256 of the priced probe iterations, as hex."""
    return hashlib.sha256("\n".join(priced()).encode()).hexdigest()


def kept_fingerprint() -> str:
    """The same as it was computed of these very sources, and kept in the user's cache; else computed. A cold start is a fifth shorter."""
    home = cache_home()
    if home is None:
        return formula_fingerprint()
    path = home / "formula" / _sources()
    try:
        kept = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        kept = ""
    if len(kept) == 64:
        return kept
    found = formula_fingerprint()
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        for old in sorted(path.parent.iterdir(), key=lambda each: each.stat().st_mtime)[:-MOST_KEPT]:
            old.unlink()
        with replacing(path) as temporary:
            temporary.write_text(found, encoding="ascii")
    return found


@cache
def _sources() -> str:
    """sha256 over all that the probes' prices come from, as hex: sources, tables, and the version of numpy."""
    digest = hashlib.sha256(np.__version__.encode())
    for place in SOURCES:
        root = package_path("sim", *place.split("/"))
        for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
            if path.suffix in (".py", ".json", ".npz"):
                digest.update(f"{path.name} {path.stat().st_size}\n".encode())
                digest.update(path.read_bytes())
    return digest.hexdigest()


def priced() -> Iterator[str]:
    """Lines of the probes' prices: the step time, each term's share of it, and reads of shared KV."""
    # distinct rates of comparable cost, so that no term hides behind another
    rates = Rates(**{name: _scale(unit) * (1 + i / 7) for i, (name, unit) in enumerate(UNITS.items())} | {"launch_layer_s": LAUNCH_S})
    yield f"GEMM times {digest()}"
    yield " ".join(f"{seconds:.{SIGNIFICANT}e}" for seconds in typical_s(NOT_IN_TABLE, TABLE, BEST, ROWS))
    yield " ".join(map(str, nearest(MEASURED_ROWS, np.arange(1.0, 2100.0))))
    yield " ".join(map(str, captured_padding(np.arange(GRAPH_TOKENS + 2.0))))
    for name in GROUPS:
        yield " ".join(f"{group_factor(gpus, get_gpu(name)):.{SIGNIFICANT}e}" for gpus in (2, 4, 8, 16))
    gpus: dict[str | None, GpuSpec | None] = {None: None, **{name: get_gpu(name) for name in (*CHIPS, *OF_CHIP)}}
    for each in probes():
        made_of = (each.precision, each.policy, each.tp, gpus[each.gpu], each.parallel, each.lora)
        terms = step_terms(iteration_work(each.model, each.shape, *made_of), rates)
        total = float(total_s(terms))
        yield f"{total:.{SIGNIFICANT}e} " + " ".join(f"{round(value / total, SIGNIFICANT) + 0.0}" for value in terms)  # no -0.0
    for stack in (each for each in STACKS.values() if not each.in_engine):  # no rate is learnt from steps of one in an engine
        for policy in map(stack.policy, (dense(), blocks(8), blocks(8, "host"))):
            shape = decode_batch(PLAIN, 2.0, 500_000.0, policy)
            terms = step_terms(decode_step_work(stack, PLAIN, shape, Precision(), policy), rates)
            yield " ".join(f"{round(value / total_s(terms), SIGNIFICANT) + 0.0}" for value in terms)
    for model, precision, tp, gpu in rereads():
        share, waves = reread(model, precision, gpus[gpu], tp, rates.beta_kv)
        yield f"{share:.{SIGNIFICANT}e} {waves} of {BLOCKS_AT_ONCE}"


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
