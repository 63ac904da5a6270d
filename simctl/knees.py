"""`simctl knees`: where batching stops paying, in measured curves or in the published study."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from simctl.tables import table

if TYPE_CHECKING:
    from calibrate.knees.by_bill import AxisScore
    from calibrate.knees.censored import Ranked
    from calibrate.knees.checks import Check
    from calibrate.knees.study import Study


@click.command("knees")
@click.argument("data", nargs=-1, required=True)
@click.option("--tau", default=0.65, show_default=True, help="Efficiency threshold that defines the knee.")
@click.option("--resamples", default=10_000, show_default=True, type=click.IntRange(100), help="Bootstrap resamples.")
@click.option("--seed", default=0, show_default=True, help="Seed of the bootstrap.")
@click.option("--loo", is_flag=True, help="tr164 only: compare predictors by left-out density, the uncrossed cell censored.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def command(data: tuple[str, ...], tau: float, resamples: int, seed: int, loo: bool, as_json: bool) -> None:
    """Analyse efficiency curves: knees, predictors, and where they fail.

    DATA is one or more measurements (CSV, or our own .nc of engine-grid or weight-axis), or `tr164`: the published study,
    recomputed from its own tables.

    A CSV has columns model, gpu, context_tokens, batch and one of step_s, decode_per_req_tps, decode_agg_tps;
    optionally weight_dtype, decode_tokens and weight_bytes, kv_bytes (per request), memory_bytes. Efficiency is
    t(1)/t(B) per request; a curve that never falls below tau is right-censored, never given a number.

    Exits 1 when a published figure does not recompute, other than those listed as known misses.

    \b
    Examples:
      simctl knees tr164
      simctl knees engine-grid_qwen2.5-7b.nc my_curves.csv --tau 0.7
    """
    if data == ("tr164",):
        from calibrate.knees.published import KNOWN_MISSES, reproduce

        checks = reproduce()
        out = {"checks": checks, "weight_axis": _weight_axis()} | ({"loo": _left_out(seed)} if loo else {})
        _emit(out, as_json, _show_published)
        if any(not c.holds and c.name not in KNOWN_MISSES for c in checks):
            raise click.exceptions.Exit(1)
        return
    import numpy as np

    from calibrate.knees.curves import read_curves
    from calibrate.knees.facts import knee_facts
    from calibrate.knees.measured import read_measured
    from calibrate.knees.study import study

    curves = [c for path in map(Path, data) for c in (read_measured(path) if path.suffix == ".nc" else read_curves(path, knee_facts))]
    _emit(study(curves, np.random.default_rng(seed), tau, resamples), as_json, _show_study)


def _emit(result: Any, as_json: bool, show: Callable[[Any], None]) -> None:
    if as_json:
        click.echo(json.dumps(_finite(_plain(result)), indent=1))
    else:
        show(result)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: [dataclasses.asdict(r) for r in rows] for k, rows in value.items()}
    return dataclasses.asdict(value)


def _weight_axis() -> list[AxisScore]:
    from calibrate.knees.by_bill import STUDY, study_scores
    from calibrate.knees.weight_axis import contrasts, observations
    from sim.posterior import rates_for
    from sim.specs.gpus import get_gpu

    return study_scores(rates_for(get_gpu("H100"), STUDY).point, observations(), contrasts())


def _left_out(seed: int) -> list[Ranked]:
    import numpy as np

    from calibrate.knees.by_bill import STUDY, predictor_values
    from calibrate.knees.censored import compare
    from calibrate.knees.weight_axis import observations, uncrossed
    from calibrate.sampling import Settings
    from sim.posterior import rates_for
    from sim.specs.gpus import get_gpu

    seen, (shape, context, last) = observations(), uncrossed()
    cells = [*((o.shape, o.context_tokens) for o in seen), (shape, context)]
    batch = np.array([*(o.knee for o in seen), last])
    values = predictor_values(rates_for(get_gpu("H100"), STUDY).point, cells)
    predictors = {name: np.array(v) for name, v in values.items()}
    return compare(batch, np.arange(batch.size) == len(seen), predictors, Settings(seed=seed))


def _finite(value: Any) -> Any:
    """JSON has no NaN: null stands for a number that does not exist."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _show_published(result: dict[str, list[Any]]) -> None:
    _show_checks(result["checks"])
    _table(
        "weight axis, 25 knees and 17 contrasts; rates of the bill are the H100 posterior",
        ("predictor", "right signs", "median x", "worst x", "Spearman"),
        [
            (s.name, f"{s.signs}/{s.contrasts}", *(_number(v) for v in (s.median_factor, s.worst_factor, s.spearman)))
            for s in result["weight_axis"]
        ],
    )
    if "loo" in result:
        _table(
            "left-out log density of 26 knees, one of them censored (two free numbers each)",
            ("predictor", "elpd", "+-", "below best", "+-", "sigma", "bad k"),
            [
                (r.predictor, *(f"{v:.2f}" for v in (r.elpd, r.error, r.below_best, r.below_best_error, r.sigma)), r.bad_pareto_k)
                for r in result["loo"]
            ],
        )


def _show_checks(checks: list[Check]) -> None:
    rows = [(c.name, "ok" if c.holds else "MISS", f"{c.deviation:.3g}", f"{c.tolerance:g}", c.statement, c.detail) for c in checks]
    _table("published knee study, recomputed", ("id", "", "deviation", "tolerance", "figure", "computed"), rows)


def _show_study(result: Study) -> None:
    _table(
        f"knees at tau {result.tau:g} (n = {len(result.curves)} curves)",
        ("model", "gpu", "dtype", "context", "discrete", "knee", "closed form", "fit r", "R2"),
        [
            (
                row.curve.cell.model,
                row.curve.cell.gpu,
                row.curve.cell.weight_dtype,
                row.curve.cell.context_tokens,
                _knee(row.discrete),
                _knee(row.continuous),
                _number(row.closed_form),
                _number(row.fit.r),
                _number(row.fit.r2),
            )
            for row in result.curves
        ],
    )
    if result.scores:
        _table(
            "predictors (Spearman on finite knees with 95 % bootstrap; factor error of those that are batches)",
            ("predictor", "Spearman", "low", "high", "imputed", "median x", "geomean x", "low on censored"),
            [
                (
                    s.predictor,
                    *(_number(v) for v in (s.spearman_finite, *s.interval, s.spearman_imputed)),
                    _number(s.median_factor),
                    _number(s.geomean_factor),
                    s.underpredicted_censored,
                )
                for s in result.scores
            ],
        )
    else:
        click.echo("\npredictors: fewer than three finite knees, nothing to rank")
    _table(
        "threshold sweep of the closed form",
        ("tau", "finite", "censored", "Spearman", "median x"),
        [(f"{t.tau:g}", t.finite, t.censored, _number(t.spearman), _number(t.median_factor)) for t in result.taus],
    )
    alphas = ", ".join(f"{gpu} {value:.3g}" for gpu, value in result.alpha.items())
    click.echo(f"\nper-GPU factor on the ratio: {alphas}")
    for name, factor in result.leave_one_model_out.items():
        click.echo(f"leave one model out, {name}: median factor {factor:.3g}")
    counts = ", ".join(f"{name} {count}" for name, count in result.categories.most_common()) or "none"
    click.echo(f"low-fit curves: {len(result.audit)} of {len(result.curves)} ({counts})")


def _knee(knee: tuple[float, bool]) -> str:
    return f"> {knee[0]:g}" if knee[1] else _number(knee[0])


def _number(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "-"


def _table(title: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    click.echo(f"\n{title}\n{table(header, rows)}")
