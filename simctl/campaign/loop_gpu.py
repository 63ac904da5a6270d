"""`simctl loop --gpu`: what was predicted of a CUDA card, what it was learnt to be, and what was then measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from calibrate.served.validation import ValidationReport
from calibrate.steps.calibration import RateRow
from hw.jobs import Job
from sim.specs.gpu import GpuSpec
from simctl.campaign.loop_engine import engine_part
from simctl.campaign.loop_kernels import ComparedStep, Measure, compared, decode_steps, learn

FORMAT = "simctl loop 1"
SAMPLED: dict[str, Any] = {}  # settings of the fits, those of `calibrate`


@dataclass(frozen=True)
class GpuLoop:
    """A finished loop. `before` is what the first prediction rests on; `served` the load predicted before and after, where vLLM ran."""

    gpu: str
    model: str
    before: str
    diagnostics: str
    rates: list[RateRow]
    steps: list[ComparedStep]
    served: tuple[ValidationReport, ValidationReport] | None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `simctl report` reads them."""
        found: dict[str, Any] = {"format": FORMAT, "gpu": self.gpu, "model": self.model, "before": self.before, "rates": [], "served": []}
        found["rates"] = [{"name": r.name, "unit": r.unit, "prior": list(r.prior), "posterior": list(r.posterior)} for r in self.rates]
        found["steps"] = [
            {"cell": s.cell, "measured_s": s.measured_s, "before_s": list(s.before_s), "after_s": list(s.after_s)} for s in self.steps
        ]
        for when, report in zip(("before", "after"), self.served or (), strict=False):
            scores = [(s.experiment, s.metric, s.median_abs, s.bias) for s in report.scores]
            found["served"] += [dict(zip(("when", "load", "metric", "median_abs", "bias"), (when, *s), strict=True)) for s in scores]
        return found


def run(model: str, gpu: GpuSpec, budget_s: float, out: Path, measured: Measure, say: Callable[[str], None]) -> GpuLoop:
    """Measure, learn, predict, measure. Raises what its parts raise: SimctlError where something is missing or does not converge."""
    say("1/4 measure the roofline and the host")
    files = [measured(Job(suite, "cuda"), out / suite, False) for suite in ("floor", "host")]
    learnt: list[tuple[Path, list[RateRow], str]] = []

    def between(first: Path) -> None:
        say("3/4 learn this card's rates; then measure the other steps, which are predicted by now")
        learnt.append(learn([first, *files], gpu, out / "posterior.nc", SAMPLED))

    say("2/4 measure the first decode steps by this project's kernels")
    first, every = decode_steps(Job("decode", "cuda", model), out, measured, between, budget_s)
    posterior, rates, diagnostics = learnt[0]
    steps, before = compared(first, every, posterior, gpu)
    served = None
    if find_spec("vllm") is None:
        say("4/4 no vLLM here: the kernels alone")
    else:
        say("4/4 vLLM: iterations, then half a minute of load")
        served = engine_part(model, gpu, out, measured, SAMPLED)
    return GpuLoop(gpu.name, model, before, diagnostics, rates, steps, served)
