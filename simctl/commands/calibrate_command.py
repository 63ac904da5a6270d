"""`simctl calibrate`: learn the rates of a GPU from measurements, with held-out error, and write a posterior."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sim.errors import UsageError
from sim.files import writable
from simctl.options.option_groups import Sectioned, Setting
from simctl.options.option_types import GPU
from simctl.options.shared_options import fit_option

if TYPE_CHECKING:
    from calibrate.steps.calibrate_question import Calibrate
    from calibrate.steps.calibration import Calibration
    from calibrate.steps.grid_cells import Grid
    from sim.specs.gpu import GpuSpec

LOGS = (".json", ".jsonl", ".csv")
SECTIONS = {
    "Learn rates": ("hw", "engine", "from", "out", "fit-option"),
}
OF_GRIDS = (
    Setting(["--folds"], default=5, show_default=True, type=click.IntRange(0), help="Folds of held-out cells; 0 skips them."),
    Setting(["--thin"], type=click.IntRange(100), help="Keep about this many draws in all, as float32 (packaged files)."),
)


@click.command("calibrate", cls=Sectioned, sections=SECTIONS)
@click.option("--hw", type=GPU, metavar="GPU", required=True, help="The GPU: a catalogue name, an alias, or a YAML file.")
@click.option(
    "--from",
    "given",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Engine grid, or decode, kernels, floor and host files of `measure` (.nc; may be repeated). [default: the packaged grids]",
)
@click.argument("more", nargs=-1, type=click.Path(path_type=Path))
@click.option("--engine", help="Only grids of this engine, or `kernels`: decode steps of this project's kernels.  [default: any]")
@click.option("--out", type=click.Path(path_type=Path), help="Write the posterior here (InferenceData netCDF).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@fit_option(*OF_GRIDS)
def command(
    hw: str, given: tuple[Path, ...], engine: str | None, out: Path | None, as_json: bool, thin: int | None,
    from_datasheet: bool, allow_unconverged: bool, more: tuple[Path, ...], **options: Any,
) -> None:  # fmt: skip
    """Learn the rates of the one formula for a GPU, and say how far to trust them.

    Learns from engine-grid measurements: those packaged for the GPU, or the files given with --from, eight cells at least. A GPU
    without packaged grids starts from the hierarchy over GPUs, which a handful of its cells narrows. Prints every rate with its unit,
    prior against posterior (5 %, median, 95 %), and errors on cells and models that the fit did not see.

    From files of the suites decode and kernels it learns a decode step by this project's own kernels, which `what-if` then prices; files of
    floor and host beside them narrow what is known before.

    A posterior is written only when R-hat <= 1.01, every effective sample size >= 400 and no transition diverged; else exits 1.

    \b
    Examples:
      simctl calibrate --hw h100                        from packaged data
      simctl calibrate --hw h100 --from GRID.nc --out posterior.nc
      simctl calibrate --hw a10 --from decode.nc floor.nc host.nc --out a10.nc
    """
    writable(out)
    if more and not given:
        raise UsageError(f"unexpected {more[0]}: files to learn from follow --from")
    given = (*given, *more)
    if any(path.suffix.lower() in LOGS for path in given):
        raise UsageError("--from takes engine grids (.nc); from a served log learns `simctl learn LOG`")
    from calibrate.backend import check_samplers
    from calibrate.steps.calibration import describe
    from sim.specs.gpus import get_gpu
    from simctl.text.calibrate_text import as_dict, show

    check_samplers()
    how = {name: options[name] for name in ("draws", "chains", "folds", "seed")}
    question, grids = _question(get_gpu(hw), given, engine, from_datasheet, how)
    result, start = question.answer()
    if as_json:
        click.echo(json.dumps(as_dict(result, describe(grids), start), indent=1))
    else:
        show(result, grids, describe(grids), start)
    if not allow_unconverged:
        result.diagnostics.require()
    if out is not None:
        _save(out, result, grids, thin)


def _of_kernels(engine: str | None, given: tuple[Path, ...]) -> bool:
    """Whether decode steps are learnt from. UsageError for files of two stacks, or of a suite that teaches nothing alone."""
    from calibrate.steps.decode_cells import SUITES, suite_of

    suites = {path: suite_of(path) for path in given}
    ours = [path for path, suite in suites.items() if suite in SUITES]
    if engine == "kernels" and len(ours) == len(given):
        return True
    if engine == "kernels" or not ours:
        return False
    if len(ours) < len(given) or engine is not None:
        raise UsageError(f"{ours[0]}: of the suite {suites[ours[0]]}, beside engine grids: an engine and kernels are learnt one at a time")
    return True


def _save(out: Path, result: Calibration, grids: Sequence[Grid], thin: int | None) -> None:
    from calibrate.steps.save import save

    path = save(out, result, grids, min(g.precision.weights for g in grids), thin)
    click.echo(f"wrote {path} ({path.stat().st_size / 1e3:.0f} kB)", err=True)


def _question(
    gpu: GpuSpec, given: tuple[Path, ...], engine: str | None, from_datasheet: bool, how: Mapping[str, Any]
) -> tuple[Calibrate, Sequence[Grid]]:
    """What is asked, of a decode step by this project's kernels or of engine grids, and the grids."""
    from calibrate.measured_files import engine_grids, of_engine
    from calibrate.steps.calibrate_question import Calibrate
    from calibrate.steps.decode_cells import decode_question

    if _of_kernels(engine, given):
        if from_datasheet:
            raise UsageError("--fit-option from-datasheet is of engine grids")
        question = decode_question(gpu, given, **how)
        return question, question.grids
    grids = of_engine(engine_grids(gpu, given), engine, bool(given))
    return Calibrate(gpu, grids, not given, from_datasheet, **how), grids
