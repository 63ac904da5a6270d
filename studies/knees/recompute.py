"""The published knee study recomputed, with the deviation beside each figure; exit 1 for one that does not recompute.

python -m studies.knees.recompute [--loo] [--json]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any

import click

from calibrate.sampling import Settings
from sim.files import plain
from sim.rates.posterior import rates_for
from sim.specs.gpus import get_gpu
from simctl.text.layout import fill, table
from studies.knees.by_step_time import STUDY, AxisScore, study_scores
from studies.knees.leave_one_out import LeftOut, of_study
from studies.knees.published import KNOWN_MISSES, Check, reproduce
from studies.knees.weight_axis import contrasts, observations

SAMPLED: dict[str, Any] = {"draws": 1000, "tune": 500, "target_accept": 0.9}  # of three to five parameters


def show_checks(checks: list[Check]) -> None:
    """Every figure of the study with its deviation; what was computed, on a line below."""
    click.echo("\npublished knee study, recomputed\nid         deviation  allowed  figure")
    for c in checks:
        head = f"{c.name}  {'ok' if c.holds else 'MISS':<4}  {c.deviation:<9.3g}  {c.tolerance:<7g}  "
        words = f"{c.statement}: {c.detail}" if c.detail else c.statement
        click.echo(fill(head + words, later=" " * len(head), whole=True))


def show_axis(scores: list[AxisScore]) -> None:
    """Predictors of the published weight axis."""
    _table(
        "weight axis, 25 knees and 17 contrasts; rates of the H100 posterior",
        ("predictor", "right signs", "median x", "worst x", "Spearman"),
        [(s.name, f"{s.signs}/{s.contrasts}", *(f"{v:.4g}" for v in (s.median_factor, s.worst_factor, s.spearman))) for s in scores],
    )


def show_left_out(found: LeftOut) -> None:
    """Predictors by left-out density."""
    _table(
        f"left-out log density of {found.knees} knees, {found.censored} of them censored\n(two free numbers each)",
        ("predictor", "elpd", "+-", "below best", "+-", "sigma", "bad k"),
        [
            (r.predictor, *(f"{v:.2f}" for v in (r.elpd, r.error, r.below_best, r.below_best_error, r.sigma)), r.bad_pareto_k)
            for r in found.ranked
        ],
    )
    for note in found.notes:
        click.echo(fill(note))


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    click.echo(f"\n{title}\n{table(header, rows)}")


def main(argv: Sequence[str]) -> int:
    """Recompute and print. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m studies.knees.recompute")
    parser.add_argument("--loo", action="store_true", help="also compare the predictors by left-out density, censored knees as bounds")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    rates = rates_for(get_gpu("H100"), STUDY)
    checks, axis = reproduce(), study_scores(rates.point, observations(), contrasts())
    left_out = of_study(rates, Settings(seed=0, **SAMPLED)) if args.loo else None
    if args.json:
        found: dict[str, Any] = {"checks": [dataclasses.asdict(c) for c in checks], "weight_axis": [dataclasses.asdict(s) for s in axis]}
        click.echo(json.dumps(plain(found | ({"loo": dataclasses.asdict(left_out)} if left_out else {})), indent=1))
    else:
        show_checks(checks)
        show_axis(axis)
        if left_out:
            show_left_out(left_out)
    return int(any(not c.holds and c.name not in KNOWN_MISSES for c in checks))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
