"""Read posterior draws of the rates, packaged or from a file, and refuse what is not one.

A posterior is ArviZ InferenceData as netCDF. It is read here with h5netcdf alone, because xarray takes long to import; where its draws
lie beside it (sim.rates.draws_file), from there.
The file's own digest and the formula's fingerprint are checked: a damaged, edited or foreign file, or rates learnt with another
formula, is an error, never an answer.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.cost.provenance import Origin, Provenance, from_json
from sim.cost.rates import UNITS, RateDraws, Rates, at_host
from sim.errors import SimctlError
from sim.files import package_path
from sim.netcdf import DamagedFileError, whole
from sim.quantiles import median, normal_quantile, t5_quantile
from sim.rates.draws_file import read_draws
from sim.rates.fingerprint import kept_fingerprint as formula_fingerprint
from sim.rates.priors import GEMM_RATES, flops_for, gemm_flops, prior_rates, priors
from sim.specs.decode_stack import ENGINE, STACKS
from sim.specs.gpu import GpuSpec
from sim.specs.gpus import get_gpu, spare_power
from sim.specs.lookup import key
from sim.specs.precision import Precision

SCHEMA = "simctl-posterior/1"
STEP_TIME = "step-time"
POPULATION = "*"
DECODE, PARALLEL = 0, 3  # places of decodes, and of iterations over several GPUs, in the model error's `kind` dimension
SIBLING_SD = 0.08  # log sd of a rate beside its datasheet between cards of one chip: other clocks, other power. Declared, not learnt
UNTHROTTLED = 0.82  # share of their peak that GEMMs reach on A100, B200 and RTX PRO 6000 Server, by their kernel tables; on L40S it is 0.73
# More of it for each unit of the log of the two datasheets' ratio: an H20 has a seventh of an H200's compute, and other kernels win there.
# Declared; of the one pair that was measured (bandwidths of H100 and H200, 0.36 apart) less is seen than SIBLING_SD.
SIBLING_FAR_SD = 0.15
REQUIRED = ("schema", "family", "gpu", "digest", "formula", "data", "converged", "basis", "source", "summary")

Array = NDArray[np.float64]


class PosteriorError(SimctlError):
    """A file that is not a posterior of ours, or is damaged, or belongs to another formula or GPU."""


@dataclass(frozen=True)
class PosteriorFile:
    """A validated file: its attributes, and the variables of its posterior group with chain and draw as one axis, [draw, ...]."""

    attrs: Mapping[str, Any]
    variables: Mapping[str, Array]
    sources: Mapping[str, Provenance]  # of each rate
    source: Provenance  # of the whole
    path: str

    def number(self, name: str, absent: float, most: float = 1e30) -> float:
        """An attribute that is a number from 0 to `most`, or `absent`. PosteriorError when it is something else."""
        value = self.attrs.get(name, absent)
        if not (isinstance(value, int | float) and 0 <= value <= most):
            raise PosteriorError(f"{self.path}: {name} is not a number from 0 up to {most:g}: {value!r}")
        return float(value)


def digest(attrs: Mapping[str, Any], variables: Mapping[str, NDArray[Any]]) -> str:
    """sha256 of attributes (but `digest`) and posterior variables [chain, draw, ...]: what makes an edit visible."""
    plain = {k: v for k, v in sorted(attrs.items()) if k != "digest"}
    mark = hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode())
    for name in sorted(variables):
        values = np.ascontiguousarray(variables[name])
        mark.update(f"{name} {values.dtype.str} {values.shape}".encode() + values.tobytes())
    return mark.hexdigest()


def read_posterior(path: str | Path) -> PosteriorFile:
    """Read and validate. Raises PosteriorError naming what is wrong; OSError when the file cannot be read at all."""
    beside = read_draws(path)
    if beside is None or digest(*beside) != beside[0].get("digest"):
        attrs, raw, unlabelled = netcdf_contents(path)
    else:
        attrs, raw, unlabelled = *beside, []
    odd = [name for name, value in attrs.items() if not isinstance(value, str | int | float)]
    if odd:
        raise PosteriorError(f"{path}: attribute {odd[0]} must be a number or a text")
    if attrs.get("schema") != SCHEMA:
        raise PosteriorError(f"{path}: not a posterior of this project (schema {attrs.get('schema')!r}, want {SCHEMA!r})")
    missing = [name for name in REQUIRED if name not in attrs]
    if missing or not raw:
        raise PosteriorError(f"{path}: incomplete posterior (no {', '.join(missing) or 'draws'})")
    if attrs["family"] != STEP_TIME:
        raise PosteriorError(f"{path}: a posterior of {attrs['family']!r}, want {STEP_TIME!r}")
    if digest(attrs, raw) != attrs["digest"]:
        raise PosteriorError(f"{path}: its content does not match its digest: edited or damaged")
    if attrs["formula"] != formula_fingerprint():
        raise PosteriorError(f"{path}: learnt with another version of the formula: calibrate again")
    if unlabelled or any(v.dtype.kind not in "fiu" or not np.isfinite(v).all() for v in raw.values()):
        raise PosteriorError(f"{path}: posterior variables must be finite numbers and begin with (chain, draw)")
    try:
        sources, source = _sources(attrs)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise PosteriorError(f"{path}: does not say what its rates were learnt from (basis)") from None
    return PosteriorFile(attrs, {n: v.reshape(-1, *v.shape[2:]).astype(float) for n, v in raw.items()}, sources, source, str(path))


def netcdf_contents(path: str | Path) -> tuple[dict[str, Any], dict[str, NDArray[Any]], list[str]]:
    """(attributes, variables of the posterior group, names of those that do not begin with chain and draw)."""
    import h5netcdf

    with open(path, "rb") as handle:  # a missing or unreadable file is an OSError with its name
        if handle.read(8) != b"\x89HDF\r\n\x1a\n":
            raise PosteriorError(f"{path}: not a netCDF-4 file")

    def contents() -> tuple[dict[str, Any], dict[str, NDArray[Any]], list[str]]:
        with h5netcdf.File(path, "r") as file:
            group = file.groups.get("posterior")
            variables = {} if group is None else {n: v for n, v in group.variables.items() if n not in group.dimensions}
            unlabelled = [n for n, v in variables.items() if v.dimensions[:2] != ("chain", "draw")]
            return {k: _plain(v) for k, v in file.attrs.items()}, {n: np.asarray(v[...]) for n, v in variables.items()}, unlabelled

    try:
        return whole(contents)
    except DamagedFileError as damage:
        raise PosteriorError(f"{path}: damaged file ({damage})") from None


@lru_cache(maxsize=16)
def _read_once(path: str, mtime_ns: int, size: int, formula: str) -> PosteriorFile:
    """One state of a file: many deployments on few GPUs take their rates from few files."""
    return read_posterior(path)


def _sources(attrs: Mapping[str, Any]) -> tuple[dict[str, Provenance], Provenance]:
    """(provenance of each rate, of the whole) as a file's attributes say."""
    body = {str(name): said for name, said in json.loads(str(attrs["basis"])).items()}
    whole_source = from_json(json.loads(str(attrs["source"])))
    return {name: from_json(said) for name, said in body.items()}, whole_source


def _check_draws(path: str | Path, values: Mapping[str, Array], sources: Mapping[str, Provenance], kind: int) -> None:
    """PosteriorError unless every rate has a source and as many draws as beta, within bounds; sigma [draw, kind] up to this kind."""
    if absent := [name for name in UNITS if name not in values or name not in sources]:
        raise PosteriorError(f"{path}: lacks {', '.join(absent)}")
    count = len(values["beta"])
    for name in (*UNITS, *sorted({"slope", "sigma"} & set(values))):
        low, high = {"sigma": (0.0, 10.0), "slope": (-10.0, 10.0)}.get(name, (1e-30, 1e30))
        found, like = values[name], (count, kind + 1) if name == "sigma" else (count,)
        if found.ndim != len(like) or found.shape[0] != count or found.shape < like or not ((found >= low) & (found <= high)).all():
            raise PosteriorError(f"{path}: {name} must be {count} draws in {low:g}..{high:g}, not of shape {found.shape} or beyond")


def _completed(
    values: Mapping[str, Array], sources: Mapping[str, Provenance], prior: RateDraws, gpu: GpuSpec
) -> tuple[dict[str, Array], dict[str, Provenance]]:
    """A population's rates; what engines of other GPUs cannot tell (host link, all-reduce, selection) is this GPU's declared prior."""
    unlike = () if gpu.gpu_link_bandwidth else ("comm_latency_s",)  # theirs have direct links
    told = {n: each for n, each in values.items() if n not in unlike}
    said = {n: each for n, each in sources.items() if n not in unlike}
    declared = {n: np.asarray(getattr(prior.draws, n), dtype=float) for n in UNITS if n not in told}
    return declared | told, {n: prior.sources[n] for n in UNITS} | said


def _peaks(file: PosteriorFile, gpu: GpuSpec, precision: Precision) -> dict[str, float]:
    """Datasheet peaks of the rates that the population knows as shares of one."""
    declared = priors(gpu, precision)
    bounded = [name for name in file.variables if name in UNITS and np.isfinite(declared[name].upper)]
    return {name: gemm_flops(gpu, precision.weights) if name in GEMM_RATES else declared[name].upper for name in bounded}


def _of_peak(file: PosteriorFile, gpu: GpuSpec, name: str, values: Mapping[str, Array]) -> Array:
    """Share of its peak [draw] that a rate reaches; GEMMs of larger GPUs reach less."""
    larger = float(np.log(flops_for(gpu, "bf16")[0] / file.number("reference_flops", float("nan")))) if "slope" in values else 0.0
    share = values[name] * np.exp(values["slope"] * larger) if larger and name in GEMM_RATES else values[name]
    return np.minimum(share, 1.0)


def rates_from_file(
    path: str | Path,
    gpu: GpuSpec,
    precision: Precision | None = None,
    *,
    draws: int | None = None,
    seed: int = 0,
    model_error: bool = True,
    tp: int = 1,
) -> RateDraws:
    """Rates of `gpu` from a posterior file of it, or of the population of GPUs. PosteriorError when it is of another GPU.

    Without `model_error` the draws are what is known of the rates alone, for those who ask what measuring could still tell.

    `tp` is how many GPUs the answer is for: what the formula misses of an iteration over several is more.

    Matrix rates of a weight dtype other than the one measured are scaled by the datasheet; the basis says so.
    """
    precision = precision or Precision()
    state = os.stat(path)
    file = _read_once(str(path), state.st_mtime_ns, state.st_size, formula_fingerprint())
    owner = str(file.attrs["gpu"])
    if owner not in (POPULATION, gpu.name):
        raise PosteriorError(f"{path}: learnt on {owner}, not on {gpu.name}")
    values, sources = dict(file.variables), dict(file.sources)
    if owner == POPULATION:
        values, sources = _completed(values, sources, prior_rates(gpu, precision, draws=len(next(iter(values.values()))), seed=seed), gpu)
    kind = DECODE if tp == 1 else PARALLEL
    _check_draws(path, values, sources, kind)
    _by_datasheet(file, gpu, precision, values, sources)
    pick = _pick(len(values["beta"]), draws, seed)
    chosen = {name: values[name][pick] for name in UNITS}
    error = host = None
    if model_error and "sigma" in values:
        error = model_errors(values["sigma"][pick, kind], seed)
        host = host_factors(file.number("host_sd", 0.0, 10.0), len(pick), seed)
        chosen = with_model_error(chosen, error)
    source = replace(file.source, converged=bool(file.number("converged", 0.0)))
    for fact in sorted({s.text() for s in sources.values() if s.origin is Origin.PUBLISHED} if owner == POPULATION else ()):
        source = source.after(fact)
    return RateDraws(
        point=Rates(**{name: median(values[name]) for name in UNITS}),
        draws=Rates(**chosen) if host is None else at_host(Rates(**chosen), host),
        sources={name: sources[name] for name in UNITS},
        source=source,
        error=error,
        host=host,
        host_request_s=file.number("host_request_s", 0.0, 1e6) if "host_request_s" in file.attrs else None,
        stack=_stack_of(file),
    )


def _by_datasheet(
    file: PosteriorFile, gpu: GpuSpec, precision: Precision, values: dict[str, Array], sources: dict[str, Provenance]
) -> None:
    """Scale in place by the datasheet: rates of the population by its peaks, matrix rates of a dtype other than the one measured."""
    if str(file.attrs["gpu"]) == POPULATION:
        for name, peak in _peaks(file, gpu, precision).items():
            values[name], sources[name] = _of_peak(file, gpu, name, values) * peak, sources[name].after("times the datasheet")
    elif precision.weights != file.attrs.get("weight_dtype", "bf16"):
        measured = gemm_flops(gpu, str(file.attrs.get("weight_dtype", "bf16")))
        values["linear_flops_per_s"] = values["linear_flops_per_s"] * gemm_flops(gpu, precision.weights) / measured
        _, used = flops_for(gpu, precision.weights)
        sources["linear_flops_per_s"] = sources["linear_flops_per_s"].after(f"scaled to {used} by the datasheet")


def stack_of_file(path: str | Path) -> str:
    """The stack whose rates a posterior file holds. Raises PosteriorError for a file that is none, OSError when it cannot be read."""
    state = os.stat(path)
    return _stack_of(_read_once(str(path), state.st_mtime_ns, state.st_size, formula_fingerprint()))


def _stack_of(file: PosteriorFile) -> str:
    """The stack whose rates a file holds. PosteriorError for one that there is not, or whose steps were counted otherwise."""
    name = str(file.attrs.get("stack", ENGINE))
    if name not in STACKS:
        raise PosteriorError(f"{file.path}: rates of an unknown stack {name!r}; there are {', '.join(STACKS)}")
    if name != ENGINE and file.attrs.get("stack_terms") != STACKS[name].terms():
        raise PosteriorError(f"{file.path}: learnt with another version of the stack {name}: calibrate again")
    return name


def model_errors(sigma: Array, seed: int) -> Array:
    """One log-t factor per draw [draw], of five degrees of freedom as it was fitted; `sigma` [draw] is an iteration's model error."""
    return np.asarray(np.exp(sigma * t5_quantile(_strata(sigma.size, seed, 50))))


def host_factors(host_sd: float, draws: int, seed: int) -> Array:
    """One log-normal factor per draw [draw]: how much longer than the median host a host takes for what hosts do."""
    return np.asarray(np.exp(host_sd * normal_quantile(_strata(draws, seed, 51))))


def _strata(count: int, seed: int, stream: int) -> Array:
    """Midpoints of `count` equal parts of (0, 1), in random order: the median of few draws is 0.5, too."""
    return np.asarray((np.random.default_rng([seed, stream]).permutation(count) + 0.5) / count)


def with_model_error(rates: Mapping[str, Array], factor: Array) -> dict[str, Array]:
    """Rates [draw] slowed or sped up as a whole by what the formula misses: every draw's step times move by its `factor`.

    Without this an interval would shrink with the number of cells learnt from, past what any single prediction can claim. One factor for
    all iterations of a draw is the cautious reading: errors of a run do not average out. Comparisons within a draw are not widened.
    """
    out = {}
    for name, values in rates.items():
        unit = UNITS[name]
        out[name] = values * factor if unit.startswith("s ") else values / factor if "/s" in unit else values
    return out


def moved(rates: RateDraws, factor: Array) -> RateDraws:
    """Draws whose step times are all `factor` [draw] times as long; the medians stay."""
    values = with_model_error({name: np.asarray(getattr(rates.draws, name)) for name in UNITS}, factor)
    return replace(rates, draws=Rates(**values), error=factor if rates.error is None else rates.error * factor)


def slowed(rates: RateDraws, loss: float, sd: float, seed: int) -> RateDraws:
    """Rates of something slower: step times longer by a log-normal factor of median exp(`loss`), one for each draw as a whole."""
    wider = moved(rates, model_errors(np.full(rates.count, sd), seed + 2))
    point, draws = ({name: getattr(each, name) for name in UNITS} for each in (wider.point, wider.draws))
    return replace(wider, point=Rates(**with_model_error(point, np.exp(loss))), draws=Rates(**with_model_error(draws, np.exp(loss))))


def rates_for(
    gpu: GpuSpec, precision: Precision | None = None, *, path: str | Path | None = None, draws: int = 1000, seed: int = 0, tp: int = 1
) -> RateDraws:
    """The best rates there are for a GPU: the file given, its packaged posterior, its chip's, the population's, else declared priors."""
    if path is None and gpu.sibling_of and (gpu.origin != "catalogue" or packaged_posterior(gpu.name) is None):
        return _inherited(gpu, precision or Precision(), draws, seed, tp)
    chosen = path or best_posterior(gpu)
    if chosen is None:
        return prior_rates(gpu, precision, draws=draws, seed=seed)
    return rates_from_file(chosen, gpu, precision, draws=draws, seed=seed, tp=tp)


def _inherited(gpu: GpuSpec, precision: Precision, draws: int, seed: int, tp: int) -> RateDraws:
    """Rates of the GPU of the same chip, those with a datasheet peak scaled by the two datasheets and widened by SIBLING_SD, and the more
    the farther these lie apart.
    """
    sibling = get_gpu(gpu.sibling_of)
    known, mine, theirs = rates_for(sibling, precision, draws=draws, seed=seed, tp=tp), priors(gpu, precision), priors(sibling, precision)
    point, drawn, sources = {}, {}, {}
    for i, name in enumerate(UNITS):
        ratio = mine[name].upper / theirs[name].upper if np.isfinite(mine[name].upper) else 1.0
        sd = math.hypot(SIBLING_SD, SIBLING_FAR_SD * math.log(ratio))
        if name in GEMM_RATES:
            ratio *= max(1.0, min(spare_power(gpu), UNTHROTTLED * gemm_flops(sibling, precision.weights) / getattr(known.point, name)))
        factor = np.exp(sd * normal_quantile(_strata(draws, seed, 60 + i))) if np.isfinite(mine[name].upper) else 1.0
        point[name], drawn[name] = getattr(known.point, name) * ratio, getattr(known.draws, name) * ratio * factor
        sources[name] = known.sources[name].after(
            f"scaled from {sibling.name} by the datasheets" if ratio != 1.0 else f"as on {sibling.name}"
        )
    source = known.source.after(f"scaled from {sibling.name}, the same chip, by the datasheets")
    return replace(known, point=Rates(**point), draws=Rates(**drawn), sources=sources, source=source)


def best_posterior(gpu: GpuSpec) -> Path | None:
    """The packaged posterior of a GPU, else the population's, else None."""
    # a user's own datasheet is not the GPU we measured, whatever name it carries
    names = (gpu.name, "population") if gpu.origin == "catalogue" else ("population",)
    return next((path for path in map(packaged_posterior, names) if path is not None), None)


def packaged_posterior(name: str) -> Path | None:
    """The packaged posterior of a GPU (or `population`), or None."""
    path = _folder() / f"{key(name)}.nc"
    return path if path.exists() else None


def stack_posterior(gpu: GpuSpec, stack: str) -> Path | None:
    """The packaged posterior of a stack, or of an engine that is not the default, on a GPU of the catalogue; or None."""
    return packaged_posterior(f"{gpu.name}-{stack}") if gpu.origin == "catalogue" else None


def packaged_posteriors() -> list[Path]:
    """All packaged posteriors, by name."""
    return sorted(_folder().glob("*.nc"))


def _folder() -> Path:
    return package_path("scenarios", "data", "posteriors")


def _pick(have: int, want: int | None, seed: int) -> NDArray[np.intp]:
    """Indices of `want` of `have` draws: at random, each once while there are enough. The first few of many are those of few."""
    if want is None or want == have:
        return np.arange(have)
    rng = np.random.default_rng(seed)
    return rng.permutation(have)[:want] if want < have else rng.integers(0, have, want)


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):  # how h5netcdf reads a text of one character
        return value.decode()
    return value.item() if isinstance(value, np.generic) else value
