"""The formula's fingerprint of packaged files, renewed where what they were learnt from is priced as it was.

    python -m studies.restamp REVISION

Iterations of every packaged measurement's model, precision, GPU and TP, and of the catalogue's models on GPUs of the kernel tables, are
priced by the sources of a Git revision and by those of this tree. A packaged file gets today's fingerprint if all that it was learnt from
costs the same within 1e-9. Others are left and named: `make rates` refits them. Returns 1 then.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from calibrate.measured_files import KEPT_APART, packaged_measurements
from calibrate.measurement import model_of, open_measurement, precision_of, whole_number
from sim.cost.batch import decode_batch, mixed_batch
from sim.cost.rates import UNITS, Rates
from sim.cost.step_time import step_terms
from sim.cost.work import iteration_work
from sim.errors import SimctlError
from sim.rates.fingerprint import formula_fingerprint
from sim.specs.gpu import GpuSpec
from sim.specs.gpus import find_gpu, get_gpu, list_gpus
from sim.specs.model import ModelSpec
from sim.specs.models import get_model, list_models
from sim.specs.precision import Precision
from studies.program import program

ROOT = Path(__file__).resolve().parent.parent if "__file__" in globals() else Path.cwd()
POSTERIORS = Path("scenarios/data/posteriors")
SAME = 1e-9
TABLES = ("A100-80G", "B200", "H100", "H200", "L40S", "RTX PRO 6000 Server")  # GPUs of kernel tables: the population is learnt from
PRICES = "--prices"  # as its only argument: print them
Prices = dict[str, list[list[float]]]


def terms(model: ModelSpec, precision: Precision, tp: int, gpu: GpuSpec) -> list[list[float]]:
    """Seconds by term [iteration, term] at rates of comparable cost."""
    scale = {"b": 1e12, "f": 1e14, "s": 1e-4}
    rates = Rates(**{name: scale[unit[0]] * (1 + i / 7) for i, (name, unit) in enumerate(UNITS.items())})
    shapes = [decode_batch(model, float(n), context) for n, context in ((1, 100.0), (7, 3000.0), (64, 900.0), (300, 20_000.0))]
    shapes += [mixed_batch(model, [2000.0] * n, [(tokens, end, 1)]) for n, tokens, end in ((0, 90, 90), (9, 400, 900), (3, 2048, 9000))]
    return [list(map(float, step_terms(iteration_work(model, shape, precision, tp=tp, gpu=gpu), rates))) for shape in shapes]


def prices() -> Prices:
    """Prices by what they are of: packaged measurements, and models of the catalogue on GPUs of kernel tables."""
    found = measured_prices(packaged_measurements()[0].parent.parent.rglob("*.nc"))
    for name in list_models():
        for card in TABLES:
            for weights in ("bf16", "fp8"):
                found[f"catalogue {name} {weights} {card}"] = terms(get_model(name), Precision(weights), 1, get_gpu(card))
    return found


def measured_prices(paths: Iterable[Path]) -> Prices:
    """Prices of the measurements of a model, by folder and name."""
    found, cards = {}, [get_gpu(name) for name in list_gpus()]
    for path in sorted(paths):
        attrs = open_measurement(path).attrs
        gpu = find_gpu(str(attrs.get("gpu_name", "")), cards)
        if "model" in attrs and gpu is not None and attrs.get("suite") != "products":
            tp = whole_number(attrs, "tensor_parallel_size", 1, path)
            found[f"{path.parent.name}/{path.name}"] = terms(model_of(attrs, path), precision_of(attrs), tp, gpu)
    return found


def prices_of(revision: str) -> Prices:
    """Prices by the sources of a Git revision."""
    archive = subprocess.run(["git", "archive", revision, "sim", "calibrate", "studies", "scenarios"], cwd=ROOT, capture_output=True)
    if archive.returncode:
        raise SimctlError(f"git archive {revision}: {archive.stderr.decode().strip()}")
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
            tar.extractall(folder, filter="data")
        environment = {**os.environ, "PYTHONPATH": folder}
        command = [sys.executable, "-c", Path(__file__).read_text(encoding="utf-8"), PRICES]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SimctlError(f"{revision} does not price its packaged measurements: {done.stderr.strip().splitlines()[-1]}")
    return dict(json.loads(done.stdout))


def changed(before: Prices, now: Prices) -> list[str]:
    """What costs another time, or is new."""
    return [name for name, found in now.items() if name not in before or not _same(before[name], found)]


def _same(before: list[list[float]], now: list[list[float]]) -> bool:
    return all(abs(sum(a) - sum(b)) <= SAME * sum(b) and _close(a, b) for a, b in zip(before, now, strict=True))


def _close(before: list[float], now: list[float]) -> bool:
    """Terms, within SAME of the whole: exposed launches are small differences of large numbers."""
    return max(abs(a - b) for a, b in zip(before, now, strict=True)) <= SAME * sum(now)


def learnt_from(file: str, names: Sequence[str]) -> Iterator[str]:
    """Those of `names` that a packaged file may have been learnt from."""
    stem = Path(file).stem
    for name in names:
        served, held_out = "served_" in name, name.startswith(tuple(f"{folder}/" for folder in KEPT_APART))
        if stem == "serving_overhead":
            learnt = not held_out and not name.startswith("catalogue")
        elif stem == "kinds":
            learnt = served or (not held_out and not name.startswith("catalogue"))
        elif stem in ("h100", "h200"):
            learnt = name.startswith(f"{stem}/") and not served
        else:
            learnt = not served and not held_out
        if learnt:
            yield name


def formula_of(path: Path) -> str:
    """The fingerprint that a packaged file carries; of several hosts, the first."""
    if path.suffix == ".nc":
        from sim.rates.posterior import netcdf_contents

        return str(netcdf_contents(path)[0]["formula"])
    body = json.loads(path.read_text(encoding="utf-8"))
    return str(body.get("formula") or body["hosts"][0]["formula"])


def stamped_netcdf(path: Path) -> None:
    """A posterior's netCDF and the draws beside it, with the fingerprint of today and a digest of their own."""
    import h5py

    from sim.rates.draws_file import write_draws
    from sim.rates.posterior import digest, netcdf_contents

    attrs, variables, _ = netcdf_contents(path)
    attrs["formula"] = formula_fingerprint()
    attrs["digest"] = digest(attrs, variables)
    with h5py.File(path, "r+") as file:
        for name in ("formula", "digest"):
            file.attrs.modify(name, np.bytes_(attrs[name]))  # in its place: a text of any length takes 8 KB more
    write_draws(path, attrs, variables)


def stamped_json(path: Path) -> None:
    """A file of JSON whose objects say `formula`."""
    body = json.loads(path.read_text(encoding="utf-8"))
    for each in [body, *body.get("hosts", [])]:
        if "formula" in each:
            each["formula"] = formula_fingerprint()
    path.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


@program("studies.restamp", "REVISION")
def main(argv: Sequence[str]) -> int:
    """Compare, stamp and print. Returns the exit code."""
    if argv[0] == PRICES:
        print(json.dumps(prices()))
        return 0
    moved = changed(prices_of(argv[0]), prices())
    for name in moved:
        print(f"costs another time: {name}")
    stale = []
    for path in sorted((ROOT / POSTERIORS).rglob("*")):
        if path.suffix != ".nc" and not (path.suffix == ".json" and '"formula"' in path.read_text(encoding="utf-8")):
            continue
        if formula_of(path) == formula_fingerprint():  # learnt, found or stamped since
            continue
        if because := next(learnt_from(path.name, moved), None):
            stale.append(path.name)
            print(f"{path.relative_to(ROOT)}: left, learnt from {because}")
            continue
        stamped_netcdf(path) if path.suffix == ".nc" else stamped_json(path)
        print(f"{path.relative_to(ROOT)}: {formula_fingerprint()[:12]}")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
