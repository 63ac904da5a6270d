"""`simctl sweep`: many cells of a scenario on all cores or on Dask, into one zarr store that grows and resumes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sim.errors import UsageError

if TYPE_CHECKING:
    from simctl.scenario_files.scenario import Scenario

MOST_CELLS = 100_000
CHECKED = 1000  # cells whose options are read before any runs


@click.command("sweep")
@click.argument("file", type=click.Path(path_type=Path), metavar="SCENARIO")
@click.option("-o", "--out", type=click.Path(path_type=Path), metavar="OUT.zarr", help="Store to create or to resume.")
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
@click.option("--seed", type=click.IntRange(0), metavar="N", help="Seed of the hypercube; --set seed=N is the simulations'. [default: 0]")
@click.option("--set", "overrides", multiple=True, metavar="OPTION=VALUE", help="Replace an option of the scenario; may be repeated.")
@click.option("--workers", type=click.IntRange(1, 256), metavar="N", help="Processes of this machine. [default: one per core]")
@click.option(
    "--dask", metavar="ADDRESS", help="Use the workers of the Dask scheduler at tcp:// or tls://HOST:PORT; local: of one started here."
)
@click.option("--dry-run", is_flag=True, help="Print the number of cells, their dimensions, and the time that they take by one of them.")
@click.option("--progress/--no-progress", default=None, help="Report progress on stderr. [default: on a terminal]")
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
    from simctl.scenario_files.sweeping import dry_run, sweep

    scenario = _scenario(file, options)
    if options["dask"] not in (None, "local") and options["workers"]:
        raise UsageError("--workers says how many processes this machine starts; the scheduler of --dask has its own")
    if options["dry_run"]:
        dry_run(scenario, options)
        return
    if options["out"] is None:
        raise UsageError("where to? give -o OUT.zarr, or --dry-run")
    sweep(scenario, options["out"], options)


def _scenario(file: Path, options: Mapping[str, Any]) -> Scenario:
    from simctl.scenario_files.scenario import load_scenario

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
