"""`simctl calibrate`: learn the rates of a GPU from measurements, with held-out error, and write a posterior."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sim.errors import UsageError
from sim.files import writable
from simctl.options import DURATION, GPU, MODEL, Sectioned

if TYPE_CHECKING:
    from calibrate.steps.calibration import Calibration

TUNE, TARGET_ACCEPT = 200, 0.9
# A few cells on top of the hierarchy over GPUs leave shares near their peaks, where steps must be small.
CAREFUL, CAREFUL_DRAWS = 0.98, 2000
DRAWS = 600
LOGS = (".json", ".jsonl", ".csv")
SECTIONS = {
    "Learn rates": (
        "hw",
        "engine",
        "from",
        "out",
        "folds",
        "worst",
        "draws",
        "chains",
        "seed",
        "thin",
        "from-datasheet",
        "allow-unconverged",
    ),
    "Measure first, then learn": ("collect", "model", "cells", "budget"),
    "Kernel latencies instead of grids": ("tables",),
}


@click.command("calibrate", cls=Sectioned, sections=SECTIONS)
@click.option("--hw", type=GPU, metavar="GPU", help="The GPU: a catalogue name or alias; cpu with --collect.  [required but for --tables]")
@click.option(
    "--from",
    "given",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Engine grid (.nc; may be repeated). [default: the GPU's packaged grids]",
)
@click.option("--engine", help="Only grids of this engine.  [default: any]")
@click.option("--out", type=click.Path(path_type=Path), help="Write the posterior here (InferenceData netCDF).")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw priors beside posteriors to a PNG or SVG file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.option(
    "--draws",
    type=click.IntRange(100),
    help="Draws per chain.  [default: 600, and 1200 where a gate fails with those; 2000 from the hierarchy]",
)
@click.option("--chains", default=4, show_default=True, type=click.IntRange(2), help="Chains.")
@click.option("--seed", default=0, show_default=True, help="Seed of the sampler, the folds and the predictive draws.")
@click.option("--folds", default=5, show_default=True, type=click.IntRange(0), help="Folds of held-out cells; 0 skips them.")
@click.option("--worst", default=0, show_default=True, type=click.IntRange(0), help="Also list so many held-out cells, worst first.")
@click.option("--thin", type=click.IntRange(100), help="Keep about this many draws in all, as float32 (packaged files).")
@click.option(
    "--from-datasheet",
    is_flag=True,
    help="Start from the datasheet, not from the hierarchy over GPUs. [default where grids of the GPU are packaged]",
)
@click.option("--allow-unconverged", is_flag=True, help="Write the posterior even when a gate fails, marked as unconverged.")
@click.option(
    "--collect", type=click.Path(path_type=Path), metavar="DIR", help="Measure this machine into DIR: --hw cpu, or the GPU it has."
)
@click.option("--model", type=MODEL, help="The shape to measure, as `simctl measure` names it.")
@click.option("--cells", type=click.Path(path_type=Path), help="Measure the cells of this file (`simctl design`) instead of a whole grid.")
@click.option("--budget", type=DURATION, metavar="TIME", help="Seconds of measuring to spend (90, 120s, 2m).")
@click.option(
    "--tables",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Kernel latencies (SYSTEM/OPERATION/vllm/VERSION/TABLE.parquet): how well they are predicted; --out learns --hw's rates.",
)
def command(
    hw: str | None, given: tuple[Path, ...], engine: str | None, out: Path | None, plot: Path | None, as_json: bool, draws: int | None,
    chains: int, seed: int, folds: int, worst: int, thin: int | None, from_datasheet: bool, allow_unconverged: bool, collect: Path | None,
    model: str | None, cells: Path | None, budget: float | None, tables: Path | None,
) -> None:  # fmt: skip
    """Learn the rates of the one formula for a GPU, and say how far to trust them.

    Learns from engine-grid measurements: those packaged for the GPU, or the files given with --from, eight cells at least. A GPU
    without packaged grids starts from the hierarchy over GPUs, which a handful of its cells narrows. Prints every rate with its unit,
    prior against posterior (5 %, median, 95 %), and errors on cells and models that the fit did not see.

    A posterior is written only when R-hat <= 1.01, every effective sample size >= 400 and no transition diverged.
    Exits 1 when one of these gates fails.

    From a served log learns `simctl learn`; which cells to measure for a decision says `simctl design`; how far off a posterior is on
    grids says `simctl validate --grid`.

    \b
    Examples:
      simctl calibrate --hw h100                        from packaged data
      simctl calibrate --hw h100 --from GRID.nc --out posterior.nc
      simctl calibrate --hw cpu --collect out/          measure first
      simctl calibrate --tables DIR --hw l40s           kernel tables
    """
    if tables is not None:
        from simctl.commands.kernel_tables import run as of_tables

        if given or collect is not None or plot is not None or engine is not None:
            raise UsageError("--tables is learnt from alone: it takes --hw, --out and --json")
        of_tables(tables, hw, out, as_json)
        return
    if not hw:
        raise UsageError("which GPU? give --hw")
    target = writable(plot)
    writable(out)
    if any(path.suffix.lower() in LOGS for path in given):
        raise UsageError("--from takes engine grids (.nc); from a served log learns `simctl learn LOG`")
    if collect is None and (asked := [f"--{name}" for name, value in (("cells", cells), ("model", model), ("budget", budget)) if value]):
        raise UsageError(f"{', '.join(asked)}: of what to measure, which needs --collect DIR")
    if collect is not None and given:
        raise UsageError("--collect measures what is learnt from: it takes no --from")
    from calibrate.measured_files import engine_grids, of_engine
    from calibrate.population.gpu_priors import starting_priors
    from calibrate.sampling import Settings
    from calibrate.steps.calibration import calibrate, describe
    from calibrate.steps.fit import StepFit
    from calibrate.steps.grid_cells import read_engine_grid
    from calibrate.steps.iterations import concatenate
    from calibrate.steps.microbenchmarks import packaged_microbenchmarks
    from sim.specs.gpus import get_gpu
    from simctl.text.calibrate_text import show

    own = bool(given) or collect is not None
    if collect is not None:
        from simctl.collect import collect as measured

        found = measured(hw, model, collect, budget, cells.resolve() if cells else None, seed)
        gpu, grids = found.gpu, of_engine([read_engine_grid(found.path, found.gpu)], engine, own)
    else:
        gpu = get_gpu(hw)
        grids = of_engine(engine_grids(gpu, given), engine, own)
    # a processor is no GPU: the hierarchy does not know it
    known, start = starting_priors(gpu, grids[0].precision, datasheet=from_datasheet or hw.lower() == "cpu")
    settings = Settings(draws=draws or DRAWS, tune=TUNE, target_accept=TARGET_ACCEPT, chains=chains, seed=seed)
    if start.pooled:
        settings = replace(settings, draws=draws or CAREFUL_DRAWS, target_accept=CAREFUL)
    elif not draws:
        settings = replace(settings, anew=2 * DRAWS)
    fit = StepFit(concatenate([g.cells for g in grids]), known, settings)
    result = calibrate(fit, folds, seed, {} if own else packaged_microbenchmarks(gpu))
    if as_json:
        click.echo(json.dumps(_plain(result, describe(grids), start.basis), indent=1))
    else:
        show(result, grids, describe(grids), start.basis, worst)
    if target is not None:
        from simctl.plots.rate_plot import plot_rates

        plot_rates([r for r in result.rates if r.learnt], describe(grids), target)
    if not allow_unconverged:
        result.diagnostics.require()
    if out is not None:
        from calibrate.steps.save import save

        path = save(out, result, grids, min(g.precision.weights for g in grids), thin)
        click.echo(f"wrote {path} ({path.stat().st_size / 1e3:.0f} kB)", err=True)


def _plain(result: Calibration, title: str, start: str) -> dict[str, Any]:
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
