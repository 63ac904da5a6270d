"""A scenario's sweep filled into a store, and what is printed of it."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import click

from sim.errors import INTERRUPTED, SimctlError, UsageError
from sim.sweeps.executor import WorkerPool, local_pool, outcomes
from sim.sweeps.figures import figures_of, variables_of
from sim.sweeps.store import Store, open_store
from simctl.from_options.dask_workers import dask_pool
from simctl.scenario_files.scenario import Scenario, versions
from simctl.scenario_files.sweep_cell import CellTask, answered, key_of
from simctl.text.layout import fill
from simctl.text.sweep_progress import SweepProgress, best_text, duration, shape_text

LONGEST_TRIAL_S = 60.0  # that a dry run waits for one cell


def sweep(scenario: Scenario, out: Path, options: Mapping[str, Any]) -> None:
    """Fill the store of a scenario and print what there is. `options` are those of the command; KeyboardInterrupt exits with 130."""
    figures, tasks = tasks_of(scenario)
    best = [*(name for name in scenario.report if name in figures), *figures]  # the first of them that is a number
    design, labels = scenario.design, [cell.label for cell in scenario.cells]
    axes = {key: str(axis) if not isinstance(axis, list) else list(map(str, axis)) for key, axis in design.axes.items()}
    about = {
        "question": scenario.question, "command": scenario.command, "options": scenario.fixed, "axes": axes,
        "samples": design.samples, "samples_seed": design.seed, "figures": figures, "report": scenario.report, **versions(),
    }  # fmt: skip
    paired = scenario.report
    with open_store(out, design, variables_of(scenario.command, figures, paired), [each.key for each in tasks], about) as store:
        done = int(store.done.sum())
        if store.damaged:
            _note(f"{out}: {store.damaged} cells are damaged, or name files that have changed: they run again")
        elif done:
            _note(f"{out}: {done} of {len(tasks)} cells are done; going on")
        watch = SweepProgress(store, labels, best, options.get("progress"))
        left = {place: each for place, each in enumerate(tasks) if not store.done[place]}
        try:
            for found in outcomes(left, answered, _workers(options)):
                for place, answer in found:
                    store.put(place, answer.figures, answer.reason)
                store.flush()
                watch()
        except KeyboardInterrupt:
            store.flush(now=True)
            watch.end()
            _note(f"interrupted: {store.done.sum()} of {len(tasks)} cells are in {out}, and the same command goes on from there")
            raise click.exceptions.Exit(INTERRUPTED) from None
        watch.end()
        click.echo(click.style(fill(scenario.question), bold=True))
        click.echo(fill(f"{len(tasks)} cells: {shape_text(design.dims, design.shape)}; {len(figures)} figures each"))
        _refused(store)
        if text := best_text(store, labels, best):
            click.echo(fill(f"=> {text}", later="   "))
    _note(f"wrote {out}; xarray.open_zarr({str(out)!r}) reads it")


def tasks_of(scenario: Scenario) -> tuple[tuple[str, ...], list[CellTask]]:
    """The figures to keep of a scenario's cells, and what a worker gets of each. Raises UsageError where there are none to keep."""
    given = [*scenario.fixed, *scenario.design.axes]
    figures = figures_of(scenario.command, scenario.report, given)
    if not figures:
        raise UsageError(f"{scenario.name}: report: name the figures to keep")
    return figures, [CellTask(scenario.command, cell.given, key_of(cell), figures, scenario.report) for cell in scenario.cells]


def _workers(options: Mapping[str, Any]) -> Any:
    count = options.get("workers") or os.cpu_count() or 1
    opened: Callable[[], AbstractContextManager[WorkerPool]]
    opened = partial(local_pool, count) if options.get("dask") is None else partial(dask_pool, options["dask"], count)
    return opened


def dry_run(scenario: Scenario, options: Mapping[str, Any]) -> None:
    """Print what a sweep would be, and about how long it takes."""
    figures, tasks = tasks_of(scenario)
    design = scenario.design
    click.echo(click.style(fill(scenario.question), bold=True))
    click.echo(fill(f"{len(tasks)} cells: {shape_text(design.dims, design.shape)}; {len(figures)} figures each"))
    for key, axis in design.axes.items():
        click.echo(fill(f"{key}: {', '.join(map(str, axis)) if isinstance(axis, list) else axis}", first="  ", later="    "))
    count = options["workers"] or os.cpu_count() or 1
    try:
        with local_pool(1) as pool:
            pool.executor.submit(answered, tasks[0]).result(LONGEST_TRIAL_S)  # imports and reading are paid once
            began = time.perf_counter()
            pool.executor.submit(answered, tasks[len(tasks) // 2]).result(LONGEST_TRIAL_S)
            took = time.perf_counter() - began
    except TimeoutError:
        click.echo(f"more than {duration(LONGEST_TRIAL_S * len(tasks) / count)} on {count} processes: no cell ended within a minute")
        return
    click.echo(f"about {duration(took * len(tasks) / count)} on {count} processes: the median cell took {took:.2g} s")


def _refused(store: Store) -> None:
    reasons = Counter(str(reason) for reason in store.arrays["reason"] if reason)
    for reason, count in reasons.most_common(3):
        click.echo(fill(f"{count} cells have no figures: {reason}", later="  "))
    if len(reasons) > 3:
        click.echo(f"... and {len(reasons) - 3} more reasons; they are in the variable 'reason'")
    if reasons and sum(reasons.values()) == len(store.done):
        raise SimctlError("no cell could be answered")


def _note(text: str) -> None:
    click.echo(text, err=True)
