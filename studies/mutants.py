"""Mutation run: one place of the source changed at a time; a mutant that no test of its part notices survives.

    python -m studies.mutants [PART...] [--of operators|meaning] [--lines N] [--seed S] [--seconds S] [--list]

draws N lines (100) of the parts (cost, cluster, engine, planning), changes one place of each in a copy of the tree, runs those tests of
the part that call the function it is in (studies.covering_tests), quickest first, until one fails, and prints the survivors with a diff of
one line. Prices are not compared with the formula's fingerprint: a test must say what is wrong. Exit code 1 where more than a tenth live.

`operators` changes an operator or a number of a statement. `meaning` (studies.meaning_mutants) exchanges like quantities, moves a bound by
one or drops a change of state. `--list` prints what would be tried: the same for the same seed and source.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import math
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from sim.errors import SimctlError
from sim.rates.fingerprint import formula_fingerprint
from studies.covering_tests import FINGERPRINT, RECORD, Covering, covering, recorded
from studies.meaning_mutants import Mutant, of_meaning
from studies.program import program

ROOT = Path(__file__).parents[1]


class Part(NamedTuple):
    """Source of a part, the tests that say what it does, and whether their simulations may run by machine code, made before the mutant."""

    source: tuple[str, ...]
    tests: tuple[str, ...]
    compiled: bool = False


ENGINE = ("sim/engine/rows", "sim/engine/schedulers.py", "sim/engine/loop.py", "sim/engine/overlap.py")
PARTS = {
    "cost": Part(("sim/cost",), ("tests/price",), compiled=True),
    "cluster": Part(("sim/cluster",), ("tests/cluster", "tests/results", "tests/study"), compiled=True),
    "engine": Part(ENGINE, ("tests/engine",)),
    "planning": Part(("sim/planning",), ("tests/planning",), compiled=True),
    # of the cluster, what runs as machine code where there is some
    "fleet": Part((), ("tests/engine/test_fleet_in_rows_equals_event_loop.py", "tests/cluster/test_rout*")),
}
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
LONGER, MORE_S = 4.0, 60.0  # of the processor, than the tests take without a mutant: beyond, a mutant hangs
HANGS = 20.0  # so many times as long by the clock, for what waits without computing


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
        for place in PARTS[part].source:
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


def survives(part: str, mutant: Mutant, copy: Path, tests: Sequence[Covering]) -> bool:
    """Whether every test passes with the mutant in the copy. A run that takes too long, or does not import, is a kill."""
    target = copy / mutant.file.relative_to(ROOT)
    lines = mutant.file.read_text().splitlines(keepends=True)
    old = lines[mutant.first - 1]
    indent = old[: len(old) - len(old.lstrip())]
    body = "".join(f"{indent}{line}\n" for line in mutant.text.splitlines())
    target.write_text("".join([*lines[: mutant.first - 1], body, *lines[mutant.last :]]))
    try:
        return passes(part, copy, [test.name for test in tests], LONGER * sum(test.seconds for test in tests) + MORE_S)
    finally:
        target.write_text("".join(lines))


def passes(part: str, copy: Path, tests: Sequence[str], seconds: float) -> bool:
    """Whether these tests pass in the copy within so many seconds of the processor."""
    try:
        done = _ran(part, copy, tests, seconds, "-x")
    except subprocess.TimeoutExpired:
        return False
    if done.returncode in (4, 5):  # pytest's own: no such test, none collected
        raise SimctlError(f"the tests of {part} were not run: {done.stdout.strip().splitlines()[-1:]}")
    return done.returncode == 0


def covering_tests(part: str, copy: Path, seconds: float) -> list[Covering]:
    """The quick tests of a part that pass, quickest first, each with the functions that it calls. SimctlError where that takes
    longer, or none passes.
    """
    record = copy / f"{part}.json"
    found = [str(each.relative_to(copy)) for place in PARTS[part].tests for each in sorted((copy / place).parent.glob(Path(place).name))]
    done = _ran(part, copy, found, seconds, **{RECORD: str(record)})
    tests = recorded(record) if record.exists() else []
    if not tests:
        raise SimctlError(f"no test of {part} passes without a mutant in {seconds:g} s: {done.stdout.strip().splitlines()[-1:]}")
    for line in done.stdout.splitlines():
        if line.startswith(("FAILED", "ERROR")):
            print(f"left out {line.split(' - ')[0]}", flush=True)
    return tests


def _ran(part: str, copy: Path, tests: Sequence[str], seconds: float, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
    names = copy / "tests.txt"  # by a file: they may be longer than a command line
    names.write_text("\n".join(tests))
    plugins = ("-p", "no:cacheprovider", "-p", "studies.covering_tests")
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", *plugins, *more, "-m", QUICK, f"@{names}"]
    bounded = partial(resource.setrlimit, resource.RLIMIT_CPU, (math.ceil(seconds),) * 2)
    return subprocess.run(
        command, cwd=copy, env=_environment(part, copy) | variables, capture_output=True, text=True, check=False,
        timeout=HANGS * seconds, preexec_fn=bounded,
    )  # fmt: skip


def _environment(part: str, copy: Path) -> dict[str, str]:
    same = {"PYTHONPATH": str(copy), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", FINGERPRINT: formula_fingerprint()}
    return {**os.environ, **same, **({} if PARTS[part].compiled else {"SIMCTL_NO_MACHINE_CODE": "1"})}


@program("studies.mutants")
def main(argv: Sequence[str]) -> int:
    """Print the survivors; 1 where more than MOST_SHARE of the mutants do."""
    parser = argparse.ArgumentParser(prog="studies.mutants")
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--lines", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=3600.0, help="of the processor, that the tests of a part may take")
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
        compileall.compile_dir(folder, quiet=2)  # once: the runs write no bytecode, which could be a mutant's
        tests: dict[str, list[Covering]] = {}
        for part, mutant in sorted((("fleet" if each.file.name.startswith("fleet_") else part), each) for part, each in chosen):
            if part not in tests:
                tests[part] = covering_tests(part, Path(folder), args.seconds)
            near = covering(tests[part], mutant.file.relative_to(ROOT).as_posix(), mutant.first) or tests[part]
            lives = survives(part, mutant, Path(folder), near)
            alive += lives
            print(f"{'SURVIVES' if lives else 'killed'} {_said(part, mutant)} ({len(near)} tests)", flush=True)
    print(f"{alive} of {len(chosen)} mutants survive")
    return int(alive > MOST_SHARE * len(chosen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
