"""What `simctl loop --gpu` prints: steps before, learnt and after, rates, and the served load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from simctl.text.layout import aligned, fill

if TYPE_CHECKING:
    from simctl.campaign.loop_gpu import GpuLoop
    from simctl.campaign.loop_kernels import ComparedStep


def loop_table(found: GpuLoop) -> list[str]:
    """Lines of the table and of its summary."""
    lines = [f"{found.model} on {found.gpu}: steps that nothing was learnt from; ! lies outside its 90 % interval", ""]
    rows = [
        (s.cell, *(f"{1e3 * v:.2f}" for v in (s.before_s[1], s.after_s[1], s.measured_s)), *(_error(s, w) for w in ("before", "after")))
        for s in found.steps
    ]
    lines += aligned(("step", "before ms", "learnt ms", "measured ms", "error before", "after"), rows)
    lines += ["", *(_summary(found.steps, which) for which in ("before", "after"))]
    lines += [fill(f"before: {found.before}"), fill(f"learnt: {found.diagnostics}"), ""]
    rates = [(r.name, r.unit.split(" ")[0].rstrip(","), *(f"{v:.4g}" for v in (r.prior[1], *r.posterior))) for r in found.rates]
    lines += aligned(("rate", "unit", "before", "5 %", "learnt", "95 %"), rows=rates, left=2)
    if found.served is not None:
        lines += ["", "Served load, median error of a request:"]
        before, after = ({(s.experiment, s.metric): s for s in report.scores} for report in found.served)
        served = [(*key, f"{before[key].median_abs:.1%}", f"{after[key].median_abs:.1%}") for key in before if key in after]
        lines += aligned(("load", "metric", "before", "learnt"), served, left=2)
    return lines


def _error(step: ComparedStep, which: str) -> str:
    return f"{100 * step.error(which):+.1f}%{' ' if step.inside(which) else '!'}"


def _summary(steps: Sequence[ComparedStep], which: str) -> str:
    size, inside = np.abs([s.error(which) for s in steps]), sum(s.inside(which) for s in steps)
    return f"{which:6} median error {100 * np.median(size):.1f} %, largest {100 * size.max():.1f} %, {inside} of {len(steps)} inside"
