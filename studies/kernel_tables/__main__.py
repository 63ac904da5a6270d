"""Errors of the formula on tables of kernel latencies, and a posterior learnt from them.

python -m studies.kernel_tables DIR [--hw GPU] [--out posterior.nc] [--json]

DIR holds SYSTEM/OPERATION/vllm/VERSION/TABLE.parquet.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from sim.errors import UsageError
from sim.specs.gpus import get_gpu
from simctl.text.layout import aligned, fill
from studies.kernel_tables.latency_tables import read_tables
from studies.kernel_tables.table_errors import LAUNCH_BOUND_S, Passed, errors, layer_errors
from studies.program import program


def run(folder: Path, hw: str | None, out: Path | None, as_json: bool) -> None:
    """Read, predict, print; with `out` learn the GPU's rates. Raises UsageError for a folder without tables."""
    gpu = get_gpu(hw) if hw else None
    if out is not None and gpu is None:
        raise UsageError("whose posterior is to be written? give --hw")
    everything = read_tables(folder, gpu if out is None else None)
    tables = [table for table in everything if gpu is None or table.gpu.name == gpu.name]
    if not tables:  # of a folder of several systems
        raise UsageError(f"{folder}: no tables of {hw}")
    parts, passed = errors(tables)
    parts += layer_errors(tables)
    if as_json:
        body = {"rows": [dataclasses.asdict(part) for part in parts], "not_predicted": [dataclasses.asdict(each) for each in passed]}
        click.echo(json.dumps(body, indent=1))
    else:
        lines = [
            (p.gpu, p.operation, p.dtype, f"{p.size} {p.axis}".strip(), str(p.n), f"{p.median:.0%}", f"{p.bias:+.0%}", f"{p.p90:.0%}")
            for p in parts
        ]
        click.echo("\n".join(aligned(("GPU", "operation", "dtype", "size", "n", "median", "bias", "p90"), lines, left=4)))
        click.echo(fill(f"Errors of predicted over measured time; rows below {LAUNCH_BOUND_S * 1e6:.0f} us are left out."))
    if said := _passed_over(passed):
        click.echo(fill(f"Passed over: {said}.", later="  ", whole=True), err=True)
    if out is not None and gpu is not None:
        from studies.population.from_tables import learn_gpu

        path = learn_gpu(everything, gpu, out)
        click.echo(f"wrote {path} ({path.stat().st_size / 1e3:.0f} kB)", err=True)


def _passed_over(passed: Sequence[Passed]) -> str:
    """Tables by name, with their rows on all GPUs where some are predicted."""
    names = sorted({each.table for each in passed})
    sums = [[sum(getattr(each, of) for each in passed if each.table == name) for of in ("rows", "of")] for name in names]
    return ", ".join(name if rows == of else f"{rows:,} of {of:,} rows of {name}" for name, (rows, of) in zip(names, sums, strict=True))


@program("studies.kernel_tables")
def main(argv: Sequence[str]) -> int:
    """Read, predict, print, write. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m studies.kernel_tables")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--hw", help="only the tables of this GPU")
    parser.add_argument("--out", type=Path, help="write the rates that they teach of it, as a posterior")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    run(given.folder, given.hw, given.out, given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
