"""Tables of `python -m studies.knees`, 80 columns wide."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from sim.units import format_tokens
from simctl.text.layout import fill, table

if TYPE_CHECKING:
    from studies.knees.curves import CurveCell
    from studies.knees.served_knees import ServedKnee
    from studies.knees.study import KneeStudy


def show_study(result: KneeStudy) -> None:
    """Knees of every curve, predictors, thresholds, factors of GPUs, and baselines."""
    _table(
        f"knees at tau {result.tau:g} (n = {len(result.curves)} curves)",
        ("model", "GPU", "ctx", "rung", "knee", "closed", "fit r", "R2", "runs"),
        [
            (_model(row.curve.cell), row.curve.cell.gpu, _context(row.curve.cell), _rung(*row.discrete), knee(row.continuous),
             number(row.closed_form), f"{row.r:.3f}", f"{row.r2:.3f}", row.curve.runs)
            for row in result.curves
        ],
    )  # fmt: skip
    _say("rung: first batch tried below tau; knee: between rungs; closed: (1 + r - tau) / (tau r) with r = C k / W; r: as fitted.")
    if result.scores:
        _table(
            "predictors: Spearman over finite knees [95 % bootstrap]; imputed: censored ones\n"
            "at twice their last batch; factor errors; low: censored ones told lower",
            ("predictor", "Spearman", "imputed", "median", "low"),
            [
                (s.predictor, _interval(s.spearman_finite, *s.interval), number(s.spearman_imputed), number(s.median_factor),
                 s.underpredicted_censored)
                for s in result.scores
            ],
        )  # fmt: skip
    else:
        click.echo("\npredictors: fewer than three finite knees, nothing to rank")
    _table(
        "threshold sweep of the closed form",
        ("tau", "finite", "censored", "Spearman", "median x"),
        [(f"{t.tau:g}", t.finite, t.censored, number(t.spearman), number(t.median_factor)) for t in result.taus],
    )
    alphas = ", ".join(f"{gpu} {value:.3g}" for gpu, value in result.alpha.items())
    click.echo()
    _say(f"per-GPU factor on the ratio, least squares over finite knees: {alphas}")
    for name, factor in result.leave_one_model_out.items():
        click.echo(f"leave one model out, {name}: median factor {factor:.3g}")


def show_served(rows: list[ServedKnee], tau: float) -> None:
    """Knees under concurrency, beside those of the engine stepped in process on the served ladder's rungs."""
    _table(
        f"served knees at tau {tau:g}: first rung of clients whose efficiency is below it",
        ("model", "GPU", "ctx", "served", "static", "", "runs"),
        [
            (_model(r.curve.cell), r.curve.cell.gpu, _context(r.curve.cell), _served(r.knee, r.curve.batches[-1]),
             "-" if r.steps is None else _served(r.static, r.curve.batches[-1]), _steps(r), r.curve.runs)
            for r in rows
        ],
    )  # fmt: skip
    if any(r.steps is None for r in rows):
        _say("static: - where no file given has a static curve of that model, GPU and context.")


def _model(cell: CurveCell) -> str:
    return f"{cell.model} {cell.weight_dtype}{f' tp{cell.tp}' if cell.tp > 1 else ''}"


def _context(cell: CurveCell) -> str:
    return format_tokens(cell.context_tokens)


def knee(found: tuple[float, bool]) -> str:
    """A knee, or `> last batch` where it was never crossed."""
    return _rung(*found) if found[1] else number(found[0])


def _rung(batch: float, censored: bool) -> str:
    return f"{'> ' if censored else ''}{batch:g}"


def _served(value: float | None, last: float) -> str:
    return _rung(last, True) if value is None else f"{value:g}"


def _steps(row: ServedKnee) -> str:
    if not row.steps:
        return "" if row.steps is None else "equal"
    return f"{'lower' if row.steps < 0 else 'higher'} by {abs(row.steps)}"


def _interval(value: float, low: float, high: float) -> str:
    return f"{value:.3f} [{low:.2f} {high:.2f}]" if math.isfinite(value) else "-"


def number(value: float) -> str:
    """Three digits, `-` for what does not exist."""
    if not math.isfinite(value):
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:#.3g}"


def _say(text: str) -> None:
    click.echo(fill(text))


def _table(title: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    click.echo(f"\n{title}\n{table(header, rows)}")
