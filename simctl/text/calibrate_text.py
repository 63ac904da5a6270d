"""Tables of `simctl calibrate`: rates and held-out errors, 80 columns wide."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import click

from calibrate.steps.calibration import Calibration
from calibrate.steps.grid_cells import Grid
from simctl.text.layout import aligned, fill

Interval = Sequence[float]  # 5, 50, 95 %
# A unit as UNITS has it begins with one of these; the prefix is chosen by the size of what is printed.
PREFIXES = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")),
    "bytes/s": ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s")),
    "flop/s": ((1e12, "TFLOP/s"), (1e9, "GFLOP/s")),
}


def say(text: str, indent: str = "") -> None:
    """A line, wrapped."""
    click.echo(fill(text, later=indent, whole=True))


def rate_table(rates: Iterable[tuple[str, str, Interval, Interval]]) -> list[str]:
    """Lines for (name, unit, prior, posterior) of each rate: medians with their 5-95 % and the unit of both."""
    rows = []
    for name, unit, prior, posterior in rates:
        scale, short = scaled(unit, max(prior[1], posterior[1]))
        rows.append((name, *(_interval([v / scale for v in each]) for each in (prior, posterior)), short))
    return aligned(("rate", "prior, 5-95 %", "posterior, 5-95 %", "unit"), rows, left=4)


def scaled(unit: str, median: float) -> tuple[float, str]:
    """(factor, unit) that print a value of this unit as a number from 1 up where a prefix can; a unit that says more is cut short."""
    kind = unit.replace(",", " ").split(" ")[0]
    if kind not in PREFIXES:
        return 1.0, "tokens" if "tokens" in unit.split(" ")[:2] else ""
    sizes = PREFIXES[kind]
    return next(((factor, short) for factor, short in sizes if median >= factor), sizes[-1])


def show(result: Calibration, grids: Sequence[Grid], title: str, start: str) -> None:
    """Everything about a fit."""
    say(title)
    for grid in grids:
        say(f"  {grid.source}: {len(grid.cells)} cells, {grid.engine}", "    ")
    for each in result.microbenchmarks:
        if taken := [name for name in each.rates if name not in result.fit.model.free]:
            say(f"  {', '.join(taken)}: {each.basis}", "    ")
    say(f"  before them: {start}", "    ")
    click.echo()
    for line in rate_table([(r.name, r.unit, r.prior, r.posterior) for r in result.rates if r.learnt]):
        click.echo(line)
    click.echo()
    if led := [f"{r.name} ({r.width:.0%} of the prior's width)" for r in result.rates if r.learnt and r.prior_led]:
        say(f"led by their priors: {', '.join(led)}.")
    if unseen := [r.name for r in result.rates if not r.learnt]:
        say(f"as the prior, for nothing here shows them: {', '.join(unseen)}. What each rate is: docs/formula.md, and `unit` with --json.")
    click.echo()
    say("model error by kind: " + ", ".join(f"{k} {v:.2%}" for k, v in result.sigma.items()))
    median, high, beyond = result.noise_floor
    say(f"noise floor, a cell's own repeats: median {median:.2%}, 90 % of cells below {high:.2%}, {beyond} cells above 6 %")
    d = result.diagnostics
    say(f"R-hat <= {d.rhat_max:.4f}, effective sample size >= {d.ess_min:.0f}, {d.divergences} divergences")
    if result.held_out:
        _show_held_out(result)


def as_dict(result: Calibration, title: str, start: str) -> dict[str, Any]:
    """Calibration as --json prints it."""
    return {
        "summary": title,
        "start": start,
        "rates": [dataclasses.asdict(r) | {"prior_led": r.prior_led} for r in result.rates],
        "held_out": [dataclasses.asdict(h) for h in result.held_out],
        "held_out_cells": [dataclasses.asdict(c) for c in result.cell_errors],
        "model_error": result.sigma,
        "noise_floor": dict(zip(("median", "p90", "cells_above_6_percent"), result.noise_floor, strict=True)),
        **dataclasses.asdict(result.diagnostics),
    }


def _show_held_out(result: Calibration) -> None:
    """Errors on what each kind of folds left out, a heading for each kind."""
    click.echo()
    rows, kind = [], ""
    for h in result.held_out:
        if h.folds != kind:
            kind = h.folds
            rows.append((kind, *[""] * 6))
        s = h.scores
        part = h.part.split(".nc (")[0] if ".nc (" in h.part else h.part
        rows.append((f"  {part}", str(s.n), *(f"{v:.2%}" for v in (s.median, s.p90, s.worst)), f"{s.bias:+.2%}", f"{s.coverage:.0%}"))
    for line in aligned(("held out, error", "n", "median", "p90", "worst", "bias", "in 90"), rows):
        click.echo(line)


def _interval(values: Interval) -> str:
    low, median, high = values
    return f"{_digits(median)} [{_digits(low)} {_digits(high)}]"


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:#.3g}" if value >= 0.01 else f"{value:.2g}"
