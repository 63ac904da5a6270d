"""What `simctl loop` computes between its measurements: rates and host costs learnt, a load predicted, the two compared."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from numpy.typing import NDArray

from sim.errors import SimctlError

if TYPE_CHECKING:
    import xarray as xr

    from sim.host import HostRates
    from sim.precision import Precision
    from sim.rates import RateDraws
    from sim.serve import Result
    from sim.specs.gpu import GpuSpec
    from sim.specs.model import ModelSpec
    from sim.workload.trace import Trace

FIGURES = {"ttft": "median_ttft_ms", "tpot": "median_tpot_ms", "e2el": "median_e2el_ms"}
PEAK_OVER_FLOOR = 2.0  # a floor is what one simple kernel reached; the datasheet peak above it is not known for a laptop


@dataclass(frozen=True)
class Learnt:
    """Rates and host costs of this machine, and the served run they were matched to."""

    gpu: GpuSpec
    model: ModelSpec
    precision: Precision
    rates: RateDraws
    host: HostRates
    limits: dict[str, int]
    block_size: int
    blocks: int
    first: xr.Dataset
    cells: int
    step_shift_s: float
    diagnostics: str


def learn(grid_file: Path, served_file: Path, out: Path, seed: int, limits: dict[str, int]) -> Learnt:
    """Fit the step-time formula to the grid; then shift its fixed cost and learn the host's part of TTFT from the served run."""
    from calibrate.sampling import Settings
    from calibrate.steps.engine_grid import read_engine_grid
    from calibrate.steps.fit import StepFit
    from calibrate.steps.population import calibration_priors
    from hw.artifact import load
    from sim.host import NO_HOST
    from sim.rates import RateDraws
    from sim.specs.gpus import get_gpu

    measured, first = load(grid_file, "engine-grid"), load(served_file, "served")
    gpu = get_gpu(str(datasheet(measured.attrs, out / "this-machine.yaml")))
    grid = read_engine_grid(grid_file, gpu)
    fit = StepFit(grid.cells, calibration_priors(gpu, grid.precision), Settings(draws=500, tune=700, chains=2, seed=seed, cores=2))
    posterior = fit.posterior()
    names = posterior.rates.names()
    point = replace(posterior.rates, **{n: float(np.median(getattr(posterior.rates, n))) for n in names})
    rates = RateDraws(point, posterior.rates, dict.fromkeys(posterior.learnt, "this loop"), "learnt by this loop")
    d = posterior.diagnostics
    text = f"R-hat <= {d.rhat_max:.3f}, effective sample size >= {d.ess_min:.0f}, {d.divergences} divergences"
    blocks, size = int(measured.attrs["kv_blocks"]), int(measured.attrs["block_size_tokens"])
    learnt = Learnt(gpu, grid.model, grid.precision, rates, NO_HOST, limits, size, blocks, first, len(grid.cells), 0.0, text)
    learnt = _shifted(learnt)
    return replace(learnt, host=_host(learnt))


def datasheet(attrs: dict[str, Any], path: Path) -> Path:
    """A datasheet for a machine that has none: its floors, with room above them."""
    bandwidth = max(attrs["floor_copy_bytes_per_s"], attrs["floor_read_bytes_per_s"])
    sheet = {
        "name": "this-machine",
        "memory_bytes": float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
        "memory_bandwidth": float(PEAK_OVER_FLOOR * bandwidth),
        "flops": {"fp32": float(PEAK_OVER_FLOOR * attrs["floor_matmul_fp32_flop_per_s"])},
        "host_link_bandwidth": float(bandwidth),
        "source": "floors of the same run",
    }
    temporary = path.with_suffix(".yaml.tmp")
    temporary.write_text(yaml.safe_dump(sheet))
    os.replace(temporary, path)
    return path


def _shifted(learnt: Learnt) -> Learnt:
    """Fixed cost moved by what the served decode windows say beyond the stepped engine: another process, another loop."""
    from sim.bill import decode_shape, iteration_bill
    from sim.price import step_time_s

    ladder = learnt.first.isel(experiment=np.flatnonzero(learnt.first.kind.values.astype(str) == "ladder"))
    shifts = []
    for n, prompt, output, step_s, void in zip(
        ladder.n.values, ladder.prompt_tokens_asked.values, ladder.output_tokens_asked.values, ladder.window_step_s.values,
        ladder.void.values.astype(str), strict=True,
    ):  # fmt: skip
        if not void and np.isfinite(step_s):
            bill = iteration_bill(learnt.model, decode_shape(learnt.model, float(n), float(prompt + output / 2)), learnt.precision)
            shifts.append(float(step_s) - float(step_time_s(bill, learnt.rates.point)))
    if not shifts:
        raise SimctlError("no usable rung in the served ladder: every batch was void")
    shift = float(np.median(shifts))
    rates = learnt.rates
    point = replace(rates.point, c0_s=max(rates.point.c0_s + shift, 1e-6))
    draws = replace(rates.draws, c0_s=np.maximum(rates.draws.c0_s + shift, 1e-6))
    return replace(learnt, rates=replace(rates, point=point, draws=draws), step_shift_s=shift)


def _host(learnt: Learnt) -> HostRates:
    """Time to first token that no engine iteration explains, at the lowest load: the median over its requests."""
    from sim.host import HostRates

    name = min((n for n in learnt.first.name.values.astype(str) if n.startswith("open")), key=lambda n: float(n[5:-2]))
    times = _times(learnt.first, name)
    beyond = times["ttft"] - _latencies(_simulate(learnt, _trace(learnt.first, name), 0))["ttft"]
    return HostRates(max(float(np.median(beyond)) / 1e3, 0.0), 0.0, 0.0, 0.0, "this loop's first served run")


def predict_open_loop(learnt: Learnt, rate: float, before: tuple[float, ...], seed: int) -> dict[str, Any]:
    """Predict the open loop that the second served run will add: the same arrivals and sizes, drawn in the same order."""
    from hw.serve.client import Target
    from hw.suites.served_plan import CPU_PLAN, open_loops

    trace = _of_sizes(*open_loops(Target("http://unused", ""), 1000, seed, (*before, rate), **CPU_PLAN)[-1].load)
    result = _simulate(learnt, trace, draws=20)
    return {"result": result, "latencies": _latencies(result)}


def compare(learnt: Learnt, predicted: dict[str, Any], second_file: Path, new: str) -> tuple[list[tuple[str, ...]], dict[str, Any]]:
    """Rows of (load, figure, predicted, 90 % of the rates, 90 % with noise, measured, error, noise); per-request errors of the new load.

    Noise is what the loads of the first run did when they were repeated beside the new one; the new load itself has no part in it.
    """
    from hw.artifact import load

    second = load(second_file, "served")
    rows, repeated = [], []
    measured = _times(second, new)
    for figure, key in FIGURES.items():
        result = predicted["result"]
        low, high = result.rate_intervals[key]
        ours, theirs = result.summary[key], float(np.median(measured[figure]))
        ratios = _repeats(learnt.first, second, figure)
        wide = with_noise(ours, low, high, ratios)
        noise = f"{np.expm1(np.sqrt(np.mean(ratios**2))):.1%}" if len(ratios) else "not repeated"
        intervals = [f"[{low:.1f}, {high:.1f}]", f"[{wide[0]:.1f}, {wide[1]:.1f}]" if wide else "-"]
        rows.append((new, f"median {figure}", f"{ours:.1f} ms", *intervals, f"{theirs:.1f} ms", f"{ours / theirs - 1:+.1%}", noise))
        repeated.append(f"{figure} {_per_request(learnt.first, second, figure)}")
    errors = {f: np.abs(predicted["latencies"][f] / measured[f] - 1) for f in FIGURES}
    text = ", ".join(f"{f} median error {np.median(e):.1%}" for f, e in errors.items())
    return rows, {"n": len(measured["e2el"]), "text": text, "repeated": ", ".join(repeated)}


def with_noise(centre: float, low: float, high: float, log_ratios: NDArray[np.float64]) -> tuple[float, float] | None:
    """The 90 % interval [low, high] of `centre`, widened by what repeated runs differ (log ratios about 0); None if nothing was repeated.

    Student's t allows for how few repeats there are. The two widths add as independent ones do.
    """
    if not len(log_ratios):
        return None
    from scipy.stats import t

    noise = float(t.ppf(0.95, len(log_ratios)) * np.sqrt(np.mean(log_ratios**2)))
    down, up = max(np.log(centre / low), 0.0), max(np.log(high / centre), 0.0)
    return centre * float(np.exp(-np.hypot(down, noise))), centre * float(np.exp(np.hypot(up, noise)))


def describe(learnt: Learnt) -> str:
    """One paragraph: what was learnt and how well it converged."""
    r = learnt.rates.point
    return (
        f"learnt from {learnt.cells} cells: beta {r.beta / 1e9:.2f} GB/s, c0 {r.c0_s * 1e3:.2f} ms "
        f"(served {learnt.step_shift_s * 1e3:+.2f} ms against stepped), linear {r.linear_flops_per_s / 1e9:.1f} Gflop/s, "
        f"host {learnt.host.request_s * 1e3:.1f} ms per request; {learnt.diagnostics}"
    )


def _repeated(first: xr.Dataset, second: xr.Dataset) -> list[str]:
    return [n for n in first.name.values.astype(str) if n.startswith("open") and n in second.name.values.astype(str)]


def _repeats(first: xr.Dataset, second: xr.Dataset, figure: str) -> NDArray[np.float64]:
    """Log of the second run's median over the first's, of each load that both have."""
    medians = [(np.median(_times(first, n)[figure]), np.median(_times(second, n)[figure])) for n in _repeated(first, second)]
    return np.array([np.log(b / a) for a, b in medians])


def _per_request(first: xr.Dataset, second: xr.Dataset, figure: str) -> str:
    """Median difference per request between two runs of the same loads."""
    pairs = [np.abs(_times(second, n)[figure] / _times(first, n)[figure] - 1) for n in _repeated(first, second)]
    return f"{np.median(np.concatenate(pairs)):.1%}" if pairs else "not repeated"


def _rows(data: xr.Dataset, name: str) -> NDArray[np.intp]:
    names = data.name.values.astype(str)
    if name not in names or str(data.void.values[list(names).index(name)]):
        raise SimctlError(f"the served run has no usable batch {name!r}")
    return np.flatnonzero(data.experiment_index.values == list(names).index(name))


def _times(data: xr.Dataset, name: str) -> dict[str, NDArray[np.float64]]:
    """Per-request milliseconds of one batch, in order of arrival."""
    rows = _rows(data, name)
    rows = rows[np.argsort(data.arrival_s.values[rows], kind="stable")]
    first, finish, n = (data[k].values[rows] for k in ("first_token_s", "finish_s", "output_tokens"))
    return {"ttft": first * 1e3, "e2el": finish * 1e3, "tpot": (finish - first) / np.maximum(n - 1, 1) * 1e3}


def _trace(data: xr.Dataset, name: str) -> Trace:
    rows = _rows(data, name)
    sizes = list(zip(data.prompt_tokens.values[rows].tolist(), data.output_tokens.values[rows].tolist(), strict=True))
    return _of_sizes(data.arrival_s.values[rows].tolist(), sizes)


def _of_sizes(arrivals: list[float], sizes: list[tuple[int, int]]) -> Trace:
    from sim.workload.trace import TraceBuilder

    builder = TraceBuilder("loop")
    for index in np.argsort(arrivals, kind="stable"):
        prompt, output = sizes[index]
        builder.add(f"request {index}", arrival_s=float(arrivals[index]), prompt_tokens=prompt, output_tokens=output)
    return builder.build()


def _simulate(learnt: Learnt, trace: Trace, draws: int) -> Result:
    from sim.deployment import Limits
    from sim.serve import Study, run_study

    limits = Limits(block_size=learnt.block_size, num_gpu_blocks=learnt.blocks, **learnt.limits)
    study = Study(trace, learnt.model, learnt.gpu, learnt.precision, learnt.rates, limits=limits, host=learnt.host)
    return run_study(study, draws=draws, keep_iterations=False)


def _latencies(result: Result) -> dict[str, NDArray[np.float64]]:
    from sim.metrics import request_latencies_ms

    found = request_latencies_ms(result.record)
    return {figure: np.asarray(found[figure], dtype=float) for figure in FIGURES}
