"""`simctl design`: which cells of an engine grid to measure next for one decision, and what they should buy."""

from __future__ import annotations

import json
from pathlib import Path

import click

from sim.errors import UsageError
from sim.files import writable
from simctl.options.option_types import DURATION, GOAL, GPU
from simctl.text.progress import progress


@click.command("design")
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option("--hw", type=GPU, metavar="GPU", required=True, help="The GPU that would be measured.")
@click.option("--budget", type=DURATION, metavar="TIME", required=True, help="Seconds of measuring to spend (90, 120s, 2m).")
@click.option("--metric", help="Figure that decides. [default: that of the goal, else the first one the scenario reports]")
@click.option(
    "--goal",
    type=GOAL,
    metavar="METRIC<=X",
    help="Bound on that figure: the decision is which cells meet it. [default: the scenario's own]",
)
@click.option("--posterior", type=click.Path(path_type=Path), help="Rates known before measuring. [default: the packaged posterior]")
@click.option("--from-datasheet", is_flag=True, help="Assume that only the datasheet is known.")
@click.option("--cells-out", type=click.Path(path_type=Path), help="Write the cells here, for `simctl measure --cells`.")
@click.option("--allow-code", is_flag=True, help="Let the scenario name a scheduler class of its own, as `simctl run` does.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def command(
    scenario: Path, hw: str, budget: float, metric: str | None, goal: tuple[str, float] | None, posterior: Path | None,
    from_datasheet: bool, cells_out: Path | None, allow_code: bool, as_json: bool,
) -> None:  # fmt: skip
    """Choose which cells of an engine grid to measure for a decision.

    SCENARIO is a file, or the name of one that comes with simctl. The cells chosen are those expected to narrow its figure most, with what
    they cost and the interval they should leave, beside a grid of the same cost. Nothing is measured.

    \b
    Examples:
      simctl design h100s_for_a_chat_load --hw h100 --budget 10s
      simctl design SCENARIO.yaml --hw l4 --budget 2m --cells-out cells.json
    """
    if posterior is not None and from_datasheet:
        raise UsageError("--posterior and --from-datasheet contradict each other")
    from calibrate.design.designed import designed
    from calibrate.design.start import start_from
    from sim.specs.gpus import get_gpu
    from simctl.campaign.design_cells import candidates, write_cells
    from simctl.scenario_files.scenario_decision import decision_of
    from simctl.text.design_text import as_dict, show

    target, gpu = writable(cells_out), get_gpu(hw)
    decision = decision_of(scenario, hw, metric, goal, allow_code)
    start = start_from(gpu, decision.precision, posterior, from_datasheet, 0)
    found = candidates(decision.model, gpu, decision.precision, start.point())
    with progress("simulating at draws of the rates") as bar:
        result = designed(decision, start, found, budget, on_progress=bar)
    if as_json:
        click.echo(json.dumps(as_dict(result), indent=1))
    else:
        show(result)
    if target is not None:
        cells = [found.grid[i] for i in result.chosen.cells]
        write_cells(target, found.shape, cells, f"for {decision.metric}: {decision.question}")
        click.echo(f"wrote {target}", err=True)
