"""Every packaged posterior, overhead and page that depends on the step-time formula, rebuilt in order.

    python -m studies.rates [STEP ...] [--list]        (make rates)

A step runs when what it reads has changed since it last ran: the formula's fingerprint, files, sources, or the output of earlier steps.
What was done is noted in out/rates/done.json after every step, so that an interrupted rebuild goes on where it stopped. Everything that
is read is part of the project: of the kernel tables what the population needs, `studies.population.kernel_efficiency`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sim.files import write_text
from sim.rates.fingerprint import formula_fingerprint

ROOT = Path(__file__).resolve().parent.parent
POSTERIORS, MEASURED = "scenarios/data/posteriors", "scenarios/data/measured"
DONE = Path("out/rates/done.json")


@dataclass(frozen=True)
class Step:
    """One command, and glob patterns of what it reads and writes below the root. `formula` says that it prices iterations.

    `page` shows what the command prints, below its first line, the command as users type it. `cpu_s` is what it, or the same of the
    other GPU, took on 2026-11-28, CPU seconds; 0 where that was not measured.
    """

    name: str
    command: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    formula: bool = True
    page: str = ""
    cpu_s: int = 0


def _calibrated(gpu: str) -> Step:
    out = f"{POSTERIORS}/{gpu}.nc"
    command = ("simctl", "calibrate", "--hw", gpu, "--fit-option", "thin=800", "--out", out)
    reads = (f"{MEASURED}/{gpu}/*.nc", f"{MEASURED}/machines.csv", "calibrate/steps/*.py", "calibrate/sampling.py", "sim/rates/priors.py")
    return Step(gpu, command, reads, (out, f"{POSTERIORS}/{gpu}.npy"), page=f"docs/data/calibrate-{gpu}.txt", cpu_s=45)


def _kernels(gpu: str) -> Step:
    out = f"{POSTERIORS}/{gpu}kernels.nc"
    command = ("simctl", "calibrate", "--hw", gpu, "--engine", "kernels", "--fit-option", "thin=800", "--out", out)
    reads = (f"{MEASURED}/{gpu}/decode_*.nc", "calibrate/steps/*.py", "sim/cost/decode_step.py", "sim/specs/decode_stack.py")
    return Step(f"{gpu}-kernels", command, reads, (out, f"{POSTERIORS}/{gpu}kernels.npy"), cpu_s=54)


STEPS = (
    _calibrated("h100"),
    _calibrated("h200"),
    _kernels("h100"),
    _kernels("h200"),
    Step(
        "population",
        ("studies.population.build", POSTERIORS),
        (f"{POSTERIORS}/h?00.nc", "studies/population/*.py", "scenarios/data/reference/kernel_efficiency.csv"),
        tuple(
            f"{POSTERIORS}/{place}.{kind}"
            for place in ("a100*", "[b-fi-z]*", "left-out/*", "left-out/datasheet/*")
            for kind in ("nc", "npy")
        ),
        cpu_s=90,
    ),
    Step(
        "published",
        ("studies.population.published_gpus", POSTERIORS),
        (f"{POSTERIORS}/population.nc", "studies/population/*.py", "studies/replication/gb10_*.py", "scenarios/data/reference/*/*.csv"),
        tuple(f"{POSTERIORS}/{gpu}.{kind}" for gpu in ("a10", "gb10", "gb10llamacpp") for kind in ("nc", "npy")),
    ),
    Step(
        "overhead",
        ("studies.serving_overheads", f"{POSTERIORS}/serving_overhead.json"),
        (f"{POSTERIORS}/h?00.nc", f"{MEASURED}/h?00/served_*.nc", "calibrate/served/*.py"),
        (f"{POSTERIORS}/serving_overhead.json",),
    ),
    Step(
        "memory",
        ("studies.kv_capacity", "--out", f"{POSTERIORS}/memory.json"),
        (
            f"{MEASURED}/h?00/*.nc",
            "studies/engine_memory.py",
            "studies/kv_pools.py",
            "sim/deployment/memory.py",
            "sim/deployment/kv_layout.py",
        ),
        (f"{POSTERIORS}/memory.json",),
        formula=False,
        page="docs/data/kv-capacity.txt",
    ),
    Step(
        "kinds",
        ("studies.kinds_seen", f"{POSTERIORS}/kinds.json"),
        (f"{POSTERIORS}/[hsm]*", f"{MEASURED}/**/*served_*.nc", "studies/kinds_seen.py"),
        (f"{POSTERIORS}/kinds.json",),
    ),
    Step(
        "recall",
        ("studies.recall", "--out", f"{POSTERIORS}/recall.json"),
        ("scenarios/data/reference/*/*.csv", "studies/needle_recall/*.py"),
        (f"{POSTERIORS}/recall.json",),
        formula=False,
        page="docs/data/recall.txt",
    ),
    Step(
        "claims",
        ("studies.replicated", "scenarios/data/replicated.json"),
        (f"{POSTERIORS}/*", "scenarios/data/reference/*/*.csv", f"{MEASURED}/**/*.nc", "studies/replication/*.py"),
        ("scenarios/data/replicated.json",),
    ),
    Step(
        "replication-page",
        ("studies.replication.knees_page", "--write"),
        (f"{POSTERIORS}/*", "studies/replication/*.py"),
        ("docs/replication.md", "docs/data/replication-knees.txt"),
    ),
    *(
        Step(name, ("docs", *words), (f"{POSTERIORS}/*", f"{POSTERIORS}/left-out/*", "docs/*.py"), ())
        for name, words in {
            "validate": ("docs/refresh.py", "--data", "validate.txt"),
            "accuracy-page": ("docs/accuracy.py", "--validate", "--write"),
            "pages": ("docs/refresh.py", "--slow"),
            "pictures": ("docs/refresh.py", "--pictures"),
            **{
                path.stem: ("docs/refresh.py", "--notebooks", str(path.relative_to(ROOT)))
                for path in sorted(ROOT.glob("notebooks/*.ipynb"))
            },
        }.items()
    ),
)


def files_of(patterns: Sequence[str], root: Path) -> list[Path]:
    """The files that the patterns name, sorted."""
    return sorted({path for pattern in patterns for path in root.glob(pattern) if path.is_file()})


def key_of(step: Step, root: Path, formula: str) -> str:
    """Hash of what a step reads: sha256, as hex."""
    mark = hashlib.sha256(f"{step.command} {formula if step.formula else ''}".encode())
    for path in files_of(step.reads, root):
        mark.update(f"\n{path.relative_to(root).as_posix()} {hashlib.sha256(path.read_bytes()).hexdigest()}".encode())
    return mark.hexdigest()


def is_stale(step: Step, done: Mapping[str, str], root: Path, formula: str) -> bool:
    """Whether what the step reads is not what it last ran on, or something that it writes is absent."""
    return done.get(step.name) != key_of(step, root, formula) or any(not files_of((pattern,), root) for pattern in step.writes)


def argument_list(command: Sequence[str]) -> list[str]:
    """The command as an argument list of this Python."""
    first, *words = command
    module = [] if first == "docs" else ["-m", first]
    return [sys.executable, *module, *words]


def _noted(done_file: Path) -> dict[str, str]:
    """Keys of the steps done, by name."""
    return dict(json.loads(done_file.read_text(encoding="utf-8"))) if done_file.exists() else {}


def _children_cpu_s() -> float:
    """CPU seconds of all processes that were started and waited for."""
    spent = os.times()
    return spent.children_user + spent.children_system


def run_step(step: Step, root: Path) -> int:
    """Run the command, and write its page if it did well. Returns the exit code."""
    environment = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    shown = subprocess.PIPE if step.page else None
    done = subprocess.run(argument_list(step.command), cwd=root, env=environment, check=False, stdout=shown, text=True)
    if step.page and not done.returncode:
        lines = [(root / step.page).read_text(encoding="utf-8").split("\n")[0], *done.stdout.splitlines()]
        write_text(root / step.page, "".join(f"{line.rstrip()}\n" for line in lines))
    return done.returncode


def rebuild(steps: Sequence[Step], root: Path, run: bool = True) -> int:
    """Run the stale steps in order; each is judged when its turn comes, as those before it may have changed what it reads. Returns the exit
    code.
    """
    done_file = root / DONE
    done = _noted(done_file)
    formula = formula_fingerprint()
    for step in steps:
        if not is_stale(step, done, root, formula):
            print(f"{step.name}: as it is", flush=True)
            continue
        if not run:
            print(f"{step.name}: to be rebuilt" + (f", about {step.cpu_s} CPU s" if step.cpu_s else ""), flush=True)
            continue
        begin = _children_cpu_s()
        if code := run_step(step, root):
            print(f"{step.name}: exit {code}; `make rates` goes on from here", file=sys.stderr)
            return code
        done = _noted(done_file) | {step.name: key_of(step, root, formula)}  # another run of other steps may have noted some meanwhile
        done_file.parent.mkdir(parents=True, exist_ok=True)
        write_text(done_file, json.dumps(done, indent=1) + "\n")
        print(f"{step.name}: rebuilt in {_children_cpu_s() - begin:.0f} CPU s", flush=True)
    return 0


def main(argv: Sequence[str]) -> int:
    """Rebuild what is stale among the steps named, or among all. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m studies.rates", description="Rebuild what depends on the step-time formula.")
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(s.name for s in STEPS)}; all by default")
    parser.add_argument("--list", action="store_true", help="say what would be rebuilt, and rebuild nothing")
    args = parser.parse_args(argv)
    if unknown := set(args.steps) - {s.name for s in STEPS}:
        parser.error(f"unknown step {', '.join(sorted(unknown))}")
    steps = [s for s in STEPS if not args.steps or s.name in args.steps]
    return rebuild(steps, ROOT, run=not args.list)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
