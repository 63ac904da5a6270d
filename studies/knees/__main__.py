"""`python -m studies.knees DATA`: batch knees of measured curves."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sim.errors import UsageError
from sim.files import plain
from simctl.options.option_types import FRACTION
from studies.program import program

if TYPE_CHECKING:
    from studies.knees.curves import EfficiencyCurve


@click.command()
@click.argument("data", nargs=-1, required=True)
@click.option("--tau", default=0.65, show_default=True, type=FRACTION, help="Efficiency threshold that defines the knee.")
@click.option("--resamples", default=10_000, show_default=True, type=click.IntRange(100), help="Bootstrap resamples.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables, every curve in it.")
def command(data: tuple[str, ...], tau: float, resamples: int, as_json: bool) -> None:
    """Analyse efficiency curves: knees, and what predicts them.

    Efficiency is t(1)/t(B) per request; the knee is the first batch whose efficiency is below tau. A curve that never falls below
    tau is right-censored (`> 64`), never given a number.

    DATA is one or more files: our own measurements (.nc of engine-grid or weight-axis; the ladders of a served run give served
    knees), by path or by the packaged name that `simctl validate --list` shows; or CSV. Runs of one cell are pooled: it counts once.

    A CSV has columns model, gpu, context_tokens, batch and one of step_s, decode_per_req_tps, decode_agg_tps; optionally
    weight_dtype, decode_tokens and weight_bytes, kv_bytes (per request), memory_bytes.

    \b
    Examples:
      python -m studies.knees h100/engine-grid_qwen2.5-7b.nc h100/served_qwen2.5-7b.nc
      python -m studies.knees my_curves.csv --tau 0.7
    """
    import numpy as np

    from studies.knees import tables
    from studies.knees.served_knees import against_static
    from studies.knees.study import study

    static, served = _curves(data)
    result: dict[str, Any] = {}
    if static:
        result |= dataclasses.asdict(found := study(static, np.random.default_rng(0), tau, resamples))
    rungs = against_static(served, static, tau)
    if rungs:
        result["served"] = [dataclasses.asdict(r) for r in rungs]
    if as_json:
        click.echo(json.dumps(plain(result), indent=1))
        return
    if static:
        tables.show_study(found)
    if rungs:
        tables.show_served(rungs, tau)


def _curves(data: tuple[str, ...]) -> tuple[list[EfficiencyCurve], list[EfficiencyCurve]]:
    """(curves of engines stepped in process and of CSV files, curves of served runs), one a cell. UsageError where no file has any."""
    from calibrate.measured_files import resolved
    from studies.knees.curves import pooled, read_curves
    from studies.knees.measured import is_served, read_measured, read_served_curves

    static: list[EfficiencyCurve] = []
    served: list[EfficiencyCurve] = []
    for path in (resolved(Path(name)) for name in data):
        if path.suffix != ".nc":
            static += read_curves(path)
            continue
        into, found = (served, read_served_curves(path)) if is_served(path) else (static, read_measured(path))
        if not found:
            click.echo(f"{path.name}: no decodes of one context at batch 1 and at another; left out", err=True)
        into += found
    if not static and not served:
        raise UsageError(f"{', '.join(data)}: no efficiency curve: needs decodes of one context at batch 1 and at another")
    return pooled(static), pooled(served)


@program("studies.knees")
def main(argv: Sequence[str]) -> int:
    command.main(list(argv), prog_name="python -m studies.knees", standalone_mode=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
