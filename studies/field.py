"""Published served results beside the answers of today: error and coverage by card, engine and weight format.

    python -m studies.field [--json] [WORD ...]

Every cell of scenarios/data/reference/field.yaml is asked of `simctl simulate`, as anyone would who knows what its source says, and no more
of the host. What a source leaves open is asked in each way (`also`): the answer is their geometric mean, and its interval holds theirs.
WORDs choose cells by parts of their names. The cells are a test set: nothing is learnt from them.
The last rows say how many figures of GPUs that no engine was stepped on would be inside narrower intervals, of cells asked in one way.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, NamedTuple

import yaml

from sim.errors import SimctlError
from sim.files import package_path
from sim.results.intervals import combined
from studies.program import program

CELLS = "data/reference/field.yaml"
BY_DEFAULT = {"--engine": "vllm", "--dtype": "as stored"}
STEPPED = ("H100", "H200")
NARROWER = (0.8, 0.6, 0.5)  # times the width, of logarithms


class Compared(NamedTuple):
    """A published figure beside the answer; `low` and `high` hold 90 % of what is not known, NaN where the answer has no interval."""

    cell: str
    card: str
    engine: str
    weights: str
    figure: str
    measured: float
    predicted: float
    low: float
    high: float
    ways: int = 1  # in which it was asked
    first: tuple[float, float, float] | None = None  # predicted, low and high of the first way: what an ask without `also` prints

    @property
    def as_asked(self) -> Compared:
        """As it was asked first."""
        predicted, low, high = self.first or (self.predicted, self.low, self.high)
        return self._replace(predicted=predicted, low=low, high=high)

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted / self.measured - 1.0

    @property
    def inside(self) -> bool:
        """Whether the interval holds the published figure."""
        return self.low <= self.measured <= self.high


def narrowed(row: Compared, factor: float) -> Compared:
    """With an interval of `factor` times the width about its middle, in logarithms."""
    middle, half = math.log(row.low * row.high) / 2, math.log(row.high / row.low) / 2
    return row._replace(low=math.exp(middle - factor * half), high=math.exp(middle + factor * half))


def cells(words: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The cells whose names have one of these words, or all. SimctlError where none has."""
    found: list[dict[str, Any]] = yaml.safe_load(package_path("scenarios", CELLS).read_text(encoding="utf-8"))
    chosen = [cell for cell in found if not words or any(word in cell["cell"] for word in words)]
    if not chosen:
        raise SimctlError(f"no cell is named by {', '.join(words)}")
    return chosen


def compared(cell: Mapping[str, Any], answers: Sequence[Mapping[str, Any]]) -> list[Compared]:
    """Every figure of a cell beside those of its answers, as summary.json has them."""
    asked = dict(zip(tokens := shlex.split(cell["ask"]), tokens[1:], strict=False))
    engine, weights = (asked.get(option, default) for option, default in BY_DEFAULT.items())
    rows = []
    for figure, measured in cell["measured"].items():
        lows, highs = zip(*(interval(answer, figure) for answer in answers), strict=True)
        predicted = geometric_mean([float(answer[figure]) for answer in answers])
        what = cell["cell"], asked["--gpu"], engine, weights, figure
        first = float(answers[0][figure]), lows[0], highs[0]
        rows.append(Compared(*what, float(measured), predicted, min(lows), max(highs), len(answers), first))
    return rows


def interval(answer: Mapping[str, Any], figure: str) -> tuple[float, float]:
    """What another server would show nine times in ten (sim.results.intervals.combined); NaN where there is no interval."""
    parts = ({figure: tuple(answer[kind][figure])} if figure in answer.get(kind, {}) else {} for kind in ("run_noise_90", "rates_90"))
    return combined(answer, *parts).get(figure, (float("nan"), float("nan")))


def asked(cell: Mapping[str, Any], more: str = "") -> dict[str, Any]:
    """The answer of `simctl simulate`, with `more` options than the cell's. SimctlError with what it says where it refuses."""
    with tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, "-m", "simctl", "simulate", *shlex.split(f"{cell['ask']} {more}"), "--no-iterations", "--json"]
        if "config" in cell:
            path = Path(folder) / "config.json"
            path.write_text(json.dumps(cell["config"]), encoding="utf-8")
            argv += ["--model", str(path)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise SimctlError(f"{cell['cell']}: {done.stderr.strip().splitlines()[-1]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def by(rows: Sequence[Compared], what: Callable[[Compared], str]) -> list[tuple[str, int, float, int]]:
    """(name, figures, median absolute error, figures inside) of each group, by name."""
    groups: dict[str, list[Compared]] = {}
    for row in rows:
        groups.setdefault(what(row), []).append(row)
    return [(name, len(g), median(abs(r.error) for r in g), sum(r.inside for r in g)) for name, g in sorted(groups.items())]


def tables(rows: Sequence[Compared], refused: Sequence[str]) -> str:
    """Markdown: every figure, then coverage by card, engine and format, and what was refused."""
    lines = ["| cell | figure | published | predicted | 90 % | error, % | inside |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        numbers = f"{row.measured:.4g} | {row.predicted:.4g} | {row.low:.4g} - {row.high:.4g} | {100 * row.error:+.0f}"
        lines.append(f"| {row.cell} | {row.figure} | {numbers} | {'yes' if row.inside else 'no'} |")
    lines += ["", "| | figures | median error, % | inside |", "| --- | --- | --- | --- |"]
    groups: Iterable[Callable[[Compared], str]] = (lambda r: r.card, lambda r: r.engine, lambda r: f"{r.weights} weights", lambda _: "all")
    for what in groups:
        lines += [f"| {name} | {count} | {100 * error:.0f} | {inside} |" for name, count, error, inside in by(rows, what)]
    if any(row.ways > 1 for row in rows):
        named = by([row.as_asked for row in rows], lambda _: "all, as asked first")
        lines += [f"| {name} | {count} | {100 * error:.0f} | {inside} |" for name, count, error, inside in named]
    for factor in (1.0, *NARROWER) if (never := [row for row in rows if row.card not in STEPPED and row.ways == 1]) else ():
        narrow = [narrowed(row, factor) for row in never]
        error, inside = 100 * median(abs(row.error) for row in never), sum(row.inside for row in narrow)
        lines.append(f"| GPUs never stepped{f', widths x {factor:g}' if factor < 1 else ''} | {len(never)} | {error:.0f} | {inside} |")
    return "\n".join([*lines, *(["", *(f"Refused: {each}." for each in refused)] if refused else [])])


@program("field")
def main(argv: Sequence[str]) -> int:
    rows: list[Compared] = []
    refused: list[str] = []
    for cell in cells([word for word in argv if word != "--json"]):
        try:
            rows += compared(cell, [asked(cell, more) for more in ("", *cell.get("also", ()))])
        except SimctlError as problem:
            refused.append(str(problem))
    if "--json" in argv:
        print(json.dumps({"figures": [row._asdict() | {"inside": row.inside} for row in rows], "refused": refused}, indent=1))
    elif rows:
        print(tables(rows, refused))
    else:
        print("\n".join(refused), file=sys.stderr)
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
