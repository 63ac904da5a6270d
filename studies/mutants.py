"""Mutation run: one place of the source changed at a time; a mutant that no test of its part notices survives.

    python -m studies.mutants [PART...] [--of operators|meaning] [--lines N] [--seed S] [--seconds S] [--list]

draws N lines (100) of the parts (cost, cluster, engine, planning), changes one place of each in a copy of the tree, runs the tests of the
part until one fails, and prints the survivors with a diff of one line. Exit code 1 where more than a tenth survive.

`operators` changes an operator or a number of a statement. `meaning` (studies.meaning_mutants) exchanges like quantities, moves a bound by
one or drops a change of state. `--list` prints what would be tried: the same for the same seed and source.
"""

from __future__ import annotations

import argparse
import ast
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from sim.errors import SimctlError
from studies.meaning_mutants import Mutant, of_meaning
from studies.program import program

ROOT = Path(__file__).parents[1]
# part -> (its source, the tests that say what it does; those that notice most come first)
PARTS = {
    "cost": (("sim/cost",), ("tests/price", "tests/sim/test_formula_fingerprint_sees_meaning_not_text.py")),
    "cluster": (("sim/cluster",), ("tests/simulate/test_rout*", "tests/engine/test_fleet_in_rows_equals_event_loop.py",
                                  "tests/simulate/test_a*", "tests/simulate/test_[c-t]*")),
    "engine": (
        ("sim/engine/rows", "sim/engine/schedulers.py", "sim/engine/llamacpp.py", "sim/engine/loop.py", "sim/engine/overlap.py"),
        ("tests/engine",),
    ),
    "planning": (("sim/planning",), ("tests/planning/test_bounds_*", "tests/planning/test_[a-z]*")),
}  # fmt: skip
NEEDED = (
    "sim",
    "simctl",
    "calibrate",
    "hw",
    "kernels",
    "studies",
    "tests",
    "scenarios",
    "docs",
    "notebooks",
    "pyproject.toml",
    "README.md",
)
QUICK = "not slow and not vllm and not sglang and not gpu"
SWAPS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt,
    ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.And: ast.Or, ast.Or: ast.And, ast.Is: ast.IsNot,
    ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
MOST_SHARE = 0.1
LONGER = 4.0  # than the tests take without a mutant: beyond, a mutant hangs


def of_operators(file: Path) -> Iterator[Mutant]:
    """Every mutant of a file, by statement of one expression; texts, annotations and errors are left alone."""
    for statement in ast.walk(ast.parse(file.read_text())):
        if not isinstance(statement, ast.Assign | ast.AugAssign | ast.Return | ast.Expr) or _is_text(statement):
            continue
        for number, _ in enumerate(_places(statement)):
            changed = ast.parse(ast.unparse(statement)).body[0]
            _change(list(_places(changed))[number])
            yield Mutant(file, statement.lineno, statement.end_lineno or statement.lineno, ast.unparse(changed))


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and not isinstance(statement.value, ast.Call | ast.Yield)


def _places(statement: ast.AST) -> Iterator[ast.AST]:
    for node in ast.walk(statement):
        number = isinstance(node, ast.Constant) and type(node.value) in (int, float)
        operator = getattr(node, "op", None) or getattr(node, "ops", [None])[0]
        if number or type(operator) in SWAPS or (isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("min", "max")):
            yield node


def _change(node: ast.AST) -> None:
    if isinstance(node, ast.Constant):
        node.value += 1  # type: ignore[operator]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        node.func.id = "max" if node.func.id == "min" else "min"
    elif isinstance(node, ast.Compare):
        node.ops[0] = SWAPS[type(node.ops[0])]()
    elif isinstance(node, ast.BinOp | ast.AugAssign | ast.BoolOp | ast.UnaryOp):
        node.op = SWAPS[type(node.op)]()


KINDS = {"operators": of_operators, "meaning": of_meaning}


def drawn(parts: Sequence[str], lines: int, seed: int, kind: str = "operators") -> list[tuple[str, Mutant]]:
    """So many mutants of the parts, of as many lines; the same for the same seed."""
    found = []
    for part in parts:
        for place in PARTS[part][0]:
            files = sorted((ROOT / place).rglob("*.py")) if (ROOT / place).is_dir() else [ROOT / place]
            found += [(part, mutant) for file in files for mutant in KINDS[kind](file)]
    random.Random(seed).shuffle(found)
    by_line = {(mutant.file, mutant.first): (part, mutant) for part, mutant in found}
    return list(by_line.values())[:lines]


def _said(part: str, mutant: Mutant) -> str:
    """A mutant on a line; of one that drops a statement, the statement."""
    lines = mutant.file.read_text().splitlines()[mutant.first - 1 : mutant.last]
    text = f"without {' '.join(lines)}" if mutant.text == "pass" else mutant.text
    return f"{part} {mutant.file.relative_to(ROOT)}:{mutant.first}: {' '.join(text.split())[:160]}"


def survives(part: str, mutant: Mutant, copy: Path, seconds: float) -> bool:
    """Whether every test of the part passes with the mutant in the copy. A run that takes too long, or does not import, is a kill."""
    target = copy / mutant.file.relative_to(ROOT)
    lines = mutant.file.read_text().splitlines(keepends=True)
    old = lines[mutant.first - 1]
    indent = old[: len(old) - len(old.lstrip())]
    body = "".join(f"{indent}{line}\n" for line in mutant.text.splitlines())
    target.write_text("".join([*lines[: mutant.first - 1], body, *lines[mutant.last :]]))
    try:
        return passes(part, copy, seconds)
    finally:
        target.write_text("".join(lines))


def passes(part: str, copy: Path, seconds: float) -> bool:
    """Whether the tests of a part pass in the copy, and in this time."""
    tests = [str(each.relative_to(copy)) for glob in PARTS[part][1] for each in sorted(copy.glob(glob))]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", QUICK]
    try:
        done = subprocess.run([*command, *tests], cwd=copy, env=_environment(copy), capture_output=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _environment(copy: Path) -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "SIMCTL_NO_NUMBA": "1"}


@program("studies.mutants")
def main(argv: Sequence[str]) -> int:
    """Print the survivors; 1 where more than MOST_SHARE of the mutants do."""
    parser = argparse.ArgumentParser(prog="studies.mutants")
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--lines", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--of", choices=list(KINDS), default="operators")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args(argv)
    chosen, alive = drawn(args.parts, args.lines, args.seed, args.of), 0
    if args.list:
        for part, mutant in chosen:
            print(_said(part, mutant))
        return 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        for name in NEEDED:
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, Path(folder) / name)
        most_s = {}
        for part in dict.fromkeys(part for part, _ in chosen):
            begin = time.perf_counter()
            if not passes(part, Path(folder), args.seconds):
                raise SimctlError(f"the tests of {part} do not pass without a mutant in {args.seconds:g} s")
            most_s[part] = min(args.seconds, LONGER * (time.perf_counter() - begin) + 60)
        for part, mutant in chosen:
            lives = survives(part, mutant, Path(folder), most_s[part])
            alive += lives
            print(f"{'SURVIVES' if lives else 'killed'} {_said(part, mutant)}", flush=True)
    print(f"{alive} of {len(chosen)} mutants survive")
    return int(alive > MOST_SHARE * len(chosen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
