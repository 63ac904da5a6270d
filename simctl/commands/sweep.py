"""`simctl sweep`: many cells of a scenario on all cores or on Dask, into one zarr store that grows and resumes."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sim.errors import INTERRUPTED, SimctlError, UsageError
from simctl.text.layout import fill

if TYPE_CHECKING:
    from sim.sweeps.store import Store
    from sim.sweeps.work import Pool
    from simctl.scenario import Scenario
    from simctl.sweep_cell import Asked

MOST_CELLS = 100_000
CHECKED = 1000  # cells whose options are read before any runs
LONGEST_TRIAL_S = 60.0  # that a dry run waits for one cell


@click.command("sweep")
@click.argument("file", type=click.Path(path_type=Path), metavar="SCENARIO")
@click.option("-o", "--out", type=click.Path(path_type=Path), metavar="OUT.zarr", help="The store, made or resumed.")
@click.option(
    "--vary",
    multiple=True,
    metavar="OPTION=VALUES",
    help="Vary an option, too: V1,V2,..., or with --samples LOW:HIGH or LOW:HIGH:log; may be repeated.",
)
@click.option(
    "--samples",
    type=click.IntRange(1, MOST_CELLS),
    metavar="N",
    show_default=False,
    help="A Latin hypercube of N cells, not every combination.",
)
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Of the hypercube; the simulations' own is --set seed=N. [default: 0]")
@click.option("--set", "overrides", multiple=True, metavar="OPTION=VALUE", help="Replace an option of the scenario; may be repeated.")
@click.option("--best", metavar="FIGURE", help="What progress calls the best cell by. [default: the scenario's first figure]")
@click.option("--workers", type=click.IntRange(1, 256), metavar="N", help="Processes of this machine. [default: one per core]")
@click.option("--dask", metavar="ADDRESS", help="Workers of the Dask scheduler at tcp://HOST:PORT; local: of one started here.")
@click.option("--dry-run", is_flag=True, help="Say how many cells, of which dimensions, and about how long; time one of them.")
@click.option("--progress/--no-progress", default=None, help="Say on stderr how far the sweep is. [default: on a terminal]")
@click.option("--allow-code", is_flag=True, help="Let the scenario name a scheduler class of its own (engine: a.b.C), which runs code.")
def command(file: Path, **options: Any) -> None:
    """Answer a scenario at many cells, into one store.

    Every combination of what the scenario's sweep and --vary list, or a Latin hypercube. OUT.zarr is one dataset for
    xarray.open_zarr: a dimension for each option varied, every figure with its unit and its 5-95 % intervals, NaN and
    done = False where a cell is not answered yet. It can be read while it grows. The same command goes on where a
    stopped one was; a store of another question or version is refused, a damaged cell runs again.

    \b
    Example:
      simctl sweep h100s_for_a_chat_load -o out.zarr \\
          --vary request-rate=10:60 --vary replicas=2:8 --samples 200
    """
    scenario = _scenario(file, options)
    if options["dask"] not in (None, "local") and options["workers"]:
        raise UsageError("--workers says how many processes this machine starts; the scheduler of --dask has its own")
    if options["dry_run"]:
        _dry_run(scenario, options)
        return
    if options["out"] is None:
        raise UsageError("where to? give -o OUT.zarr, or --dry-run")
    sweep(scenario, options["out"], options)


def sweep(scenario: Scenario, out: Path, options: Mapping[str, Any]) -> None:
    """Fill the store of a scenario and print what there is. `options` are those of the command; KeyboardInterrupt exits with 130."""
    from sim.sweeps.figures import variables_of
    from sim.sweeps.store import open_store
    from sim.sweeps.work import outcomes
    from simctl.scenario import versions
    from simctl.sweep_cell import answered
    from simctl.text.sweep_progress import Watch, best_text, shape_text

    figures, asked = asked_of(scenario)
    best = _best(scenario, figures, options.get("best"))
    design = scenario.design
    axes = {key: str(axis) if not isinstance(axis, list) else list(map(str, axis)) for key, axis in design.axes.items()}
    about = {
        "question": scenario.question, "command": scenario.command, "options": scenario.fixed, "axes": axes,
        "samples": design.samples, "samples_seed": design.seed, "figures": figures, **versions(),
    }  # fmt: skip
    with open_store(out, design, variables_of(scenario.command, figures), [each.key for each in asked], about) as store:
        done = int(store.done.sum())
        if store.damaged:
            _note(f"{out}: {store.damaged} cells are damaged, or name files that have changed: they run again")
        elif done:
            _note(f"{out}: {done} of {len(asked)} cells are done; going on")
        watch = Watch(store, scenario.cells, best, options.get("progress"))
        left = {place: each for place, each in enumerate(asked) if not store.done[place]}
        try:
            for found in outcomes(left, answered, _workers(options)):
                for place, answer in found:
                    store.put(place, answer.figures, answer.reason)
                store.flush()
                watch()
        except KeyboardInterrupt:
            store.flush(now=True)
            watch.end()
            _note(f"interrupted: {store.done.sum()} of {len(asked)} cells are in {out}, and the same command goes on from there")
            raise click.exceptions.Exit(INTERRUPTED) from None
        watch.end()
        click.echo(click.style(fill(scenario.question), bold=True))
        click.echo(fill(f"{len(asked)} cells: {shape_text(design.dims, design.shape)}; {len(figures)} figures each"))
        _refused(store)
        if text := best_text(store, scenario.cells, best):
            click.echo(fill(f"=> {text}", later="   "))
    _note(f"wrote {out}; xarray.open_zarr({str(out)!r}) reads it")


def _scenario(file: Path, options: Mapping[str, Any]) -> Scenario:
    from simctl.scenario import load_scenario

    pairs = {}
    for name in ("vary", "overrides"):
        flag = "--vary" if name == "vary" else "--set"
        split = [item.partition("=")[::2] for item in options[name]]
        if bad := [text for text, (key, value) in zip(options[name], split, strict=True) if not (key and value)]:
            raise UsageError(f"{flag} needs OPTION={'VALUES' if name == 'vary' else 'VALUE'}, got {bad[0]!r}")
        pairs[name] = dict(split)
        if len(pairs[name]) < len(split):
            raise UsageError(f"{flag}: an option is given twice")
    samples, seed = options["samples"], options["seed"]
    # absolute: a worker has another working directory, and a store is resumed from anywhere
    path = file.resolve() if file.exists() else file
    scenario = load_scenario(path, pairs["overrides"], options["allow_code"], pairs["vary"], samples, seed or 0, MOST_CELLS)
    if seed is not None and scenario.design.samples is None:
        raise UsageError("--seed draws a Latin hypercube: give --samples, too; the simulations' own seed is --set seed=N")
    _check(scenario)
    return scenario


def _check(scenario: Scenario) -> None:
    """Refuse what no cell could do with, before any runs: each value of each axis."""
    seen: set[tuple[str, str]] = set()
    for cell in scenario.cells[:CHECKED]:
        if not seen or not seen.issuperset(cell.label.items()):
            seen.update(cell.label.items())
            cell.options()


def asked_of(scenario: Scenario) -> tuple[tuple[str, ...], list[Asked]]:
    """The figures to keep of a scenario's cells, and what a worker gets of each. Raises UsageError where there are none to keep."""
    from sim.sweeps.figures import figures_of
    from simctl.sweep_cell import Asked, key_of

    given = [*scenario.fixed, *scenario.design.axes]
    figures = figures_of(scenario.command, scenario.report, given)
    if not figures:
        raise UsageError(f"{scenario.name}: report: name the figures to keep")
    return figures, [Asked(scenario.command, cell.given, key_of(cell), figures) for cell in scenario.cells]


def _best(scenario: Scenario, figures: tuple[str, ...], asked: str | None) -> list[str]:
    """Figures to call a cell the best by: the first of them that is a number."""
    from sim.specs.lookup import did_you_mean

    if asked is not None and asked not in figures:
        raise UsageError(f"--best: no figure {asked!r}{did_you_mean(asked, figures)}; there are {', '.join(figures)}")
    return [asked] if asked else [*(name for name in scenario.report if name in figures), *figures]


def _workers(options: Mapping[str, Any]) -> Any:
    from sim.sweeps.work import local_pool
    from simctl.sweep_workers import dask_pool

    count = options.get("workers") or os.cpu_count() or 1
    opened: partial[AbstractContextManager[Pool]]
    opened = partial(local_pool, count) if options.get("dask") is None else partial(dask_pool, options["dask"], count)
    return opened


def _dry_run(scenario: Scenario, options: Mapping[str, Any]) -> None:
    from sim.sweeps.work import local_pool
    from simctl.sweep_cell import answered
    from simctl.text.sweep_progress import duration, shape_text

    figures, asked = asked_of(scenario)
    design = scenario.design
    click.echo(click.style(fill(scenario.question), bold=True))
    click.echo(fill(f"{len(asked)} cells: {shape_text(design.dims, design.shape)}; {len(figures)} figures each"))
    for key, axis in design.axes.items():
        click.echo(fill(f"{key}: {', '.join(map(str, axis)) if isinstance(axis, list) else axis}", first="  ", later="    "))
    count = options["workers"] or os.cpu_count() or 1
    try:
        with local_pool(1) as pool:
            pool.executor.submit(answered, asked[0]).result(LONGEST_TRIAL_S)  # imports and reading are paid once
            began = time.perf_counter()
            pool.executor.submit(answered, asked[len(asked) // 2]).result(LONGEST_TRIAL_S)
            took = time.perf_counter() - began
    except TimeoutError:
        click.echo(f"more than {duration(LONGEST_TRIAL_S * len(asked) / count)} on {count} processes: no cell ended within a minute")
        return
    click.echo(f"about {duration(took * len(asked) / count)} on {count} processes: a cell in the middle took {took:.2g} s")


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
