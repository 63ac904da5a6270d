"""Errors of a posterior on grids that it was not learnt from, as `simctl validate --grid` prints them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from calibrate.measured_files import engine_grids, resolved
from calibrate.steps.grid_cells import read_engine_grid
from calibrate.steps.held_out import Scores
from calibrate.steps.predict import Predicted, pooled, predict
from sim.errors import UsageError
from sim.rates.posterior import best_posterior, packaged_posteriors, read_posterior
from sim.specs.gpus import get_gpu
from simctl.text.layout import table

LOGS = (".json", ".jsonl", ".csv")
HEADS = ("cells", "n", "median", "p90", "worst", "bias", "in 90")


def run(hw: str | None, given: Sequence[Path], posterior: Path | None, seed: int, as_json: bool) -> None:
    """Read, predict, print. Raises UsageError when a file is no engine grid, or when one is of another GPU than `hw` or than the first."""
    if logs := [path.name for path in given if path.suffix.lower() in LOGS]:
        raise UsageError(f"{', '.join(logs)}: --grid is of engine grids (.nc); a served log is --run LOG")
    gpu = get_gpu(hw) if hw else read_engine_grid(resolved(given[0])).gpu
    grids = engine_grids(gpu, given)
    path = posterior or best_posterior(gpu)
    if path is None:
        raise UsageError(f"no packaged posterior of {gpu.name}; give one with --posterior")
    file = read_posterior(path)
    found = [predict(grid, path, seed) for grid in grids]
    said = {"posterior": str(file.attrs["summary"]), "packaged": path in packaged_posteriors(), "host_sd": file.number("host_sd", 0.0)}
    if as_json:
        click.echo(json.dumps(said | {"files": [_plain(each) for each in found]}, indent=1))
        return
    click.echo(f"{said['posterior']}{'' if file.number('converged', 0.0) else ' (NOT CONVERGED)'}")
    click.echo(f"nothing is learnt; a host's factor is drawn again ({said['host_sd']:.0%} from host to host)")
    for each in found:
        _show(each)
    if len(found) > 1:
        click.echo("\nall files")
        click.echo(table(HEADS, [_row(part.cells, part.scores) for part in pooled(found)]))


def _show(found: Predicted) -> None:
    click.echo(f"\n{found.source}: {found.engine}")
    if found.learnt_from:
        click.echo("the posterior was learnt from this very file: what follows is a fit, no prediction")
    rows = [_row(part.cells, part.scores) for part in found.parts]
    click.echo(table(HEADS, [*rows, _row(f"all, given its host: {found.host:.2f}", found.given_host)]))


def _row(name: str, s: Scores) -> tuple[Any, ...]:
    return (name, s.n, *(f"{v:.2%}" for v in (s.median, s.p90, s.worst)), f"{s.bias:+.2%}", f"{s.coverage:.0%}")


def _plain(found: Predicted) -> dict[str, Any]:
    return {
        "source": found.source,
        "engine": found.engine,
        "learnt_from": found.learnt_from,
        "host": found.host,
        "parts": {part.cells: dataclasses.asdict(part.scores) for part in found.parts},
        "given_host": dataclasses.asdict(found.given_host),
        "cells": [dataclasses.asdict(cell) | {"error": cell.error} for cell in found.cells],
    }
