"""`python -m hw.window PLAN -o DIR`: one window of GPU time, one command. Steps in order of worth, each kept as soon as it ends.

Every step runs in a process and a folder of its own, its output in `log`. One that does not end in its time is asked to stop and write what
it has, then stopped. After each step everything so far is packed into `DIR/PLAN.tar.xz`, the one file to carry back, and `DIR/window.json`
says what ran. The same command on the same folder goes on where it was cut.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from hw import preflight
from hw.exits import call
from hw.provenance import query_gpus
from hw.signals import terminate_as_interrupt
from hw.window_plans import PLANS, Plan, Step
from sim.errors import UsageError

GRACE_S = 25.0  # from being asked to stop until being stopped: a served suite writes its files and ends its server
RESERVE_S = 5.0  # packing


def missing(step: Step) -> str:
    """What this machine lacks for the step; empty when nothing."""
    if step.program and shutil.which(step.program) is None:
        return f"{step.program} is not on the path"
    absent = [name for name in step.needs if importlib.util.find_spec(name) is None]
    return f"not importable: {', '.join(absent)}" if absent else ""


def call_of(step: Step, folder: Path, seconds: float) -> list[str]:
    """The command line of a step that gets `seconds`."""
    budget = max(1.0, seconds - step.start_s - GRACE_S)
    words = [word.format(out=folder, budget=f"{budget:.0f}", python=sys.executable) for word in step.command]
    return [shutil.which(step.program) or step.program if step.program else sys.executable, *words]


def run(name: str, plan: Plan, out: Path, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> list[dict[str, Any]]:
    """Do the plan's steps within `seconds`. Returns what became of each (name, status, seconds, command), also in `out/window.json`."""
    deadline = clock() + seconds - RESERVE_S
    out.mkdir(parents=True, exist_ok=True)
    before = _read(out / "window.json", name)
    rows: list[dict[str, Any]] = []
    for number, step in enumerate(plan.steps, 1):
        folder = out / f"{number}-{step.name}"
        left = deadline - clock()
        earlier = next((r for r in before if r["name"] == step.name), None)
        if earlier and earlier["status"] == "ok":
            rows.append(earlier)
            continue
        row: dict[str, Any] = {"name": step.name, "status": "", "seconds": 0.0, "command": ""}
        rows.append(row)
        if lack := missing(step):
            row["status"] = f"skipped: {lack}"
        elif left < step.least_s:
            row["status"] = f"not begun: {max(left, 0):.0f} s left, worth it from {step.least_s:.0f} s"
        else:
            allowed = min(step.most_s, left)
            call = call_of(step, folder, allowed)
            row["command"], start = " ".join(call), clock()
            click.echo(f"[{seconds - RESERVE_S - left:4.0f} s] {step.name}: at most {allowed:.0f} s", err=True)
            try:
                row["status"] = _do(call, folder, allowed, dict(step.env))
            except KeyboardInterrupt:
                row["status"] = "interrupted"
                raise
            finally:
                row["seconds"] = round(clock() - start, 1)
                _keep(out, name, rows)
        click.echo(f"         {step.name}: {row['status']}", err=True)
    _keep(out, name, rows)
    return rows


def _do(call: Sequence[str], folder: Path, seconds: float, env: dict[str, str]) -> str:
    folder.mkdir(exist_ok=True)
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(call, stdout=log, stderr=subprocess.STDOUT, env=env | dict(os.environ), start_new_session=True)
        try:
            code = process.wait(max(seconds - GRACE_S, 1.0))
        except subprocess.TimeoutExpired:
            _stop(process)
            return "cut: out of time"
        except BaseException:
            _stop(process)
            raise
    if code:
        return f"failed: exit {code}: {' '.join((folder / 'log').read_text(errors='replace')[-300:].split())}"
    return "cut: budget spent" if list(folder.glob("*.journal.jsonl")) else "ok"


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _keep(out: Path, name: str, rows: list[dict[str, Any]]) -> None:
    """The record and the pack, each replaced whole."""
    record, packed = out / "window.json", out / f"{name}.tar.xz"
    temporary = out / "window.tmp"
    temporary.write_text(json.dumps({"plan": name, "steps": rows}, indent=1) + "\n")
    os.replace(temporary, record)
    with tarfile.open(temporary, "w:xz", preset=1) as pack:
        for path in sorted(p for p in out.iterdir() if p not in (packed, temporary)):
            pack.add(path, arcname=f"{name}/{path.name}")
    os.replace(temporary, packed)


def _read(record: Path, name: str) -> list[dict[str, Any]]:
    if not record.exists():
        return []
    try:
        before = json.loads(record.read_text())
        if before["plan"] == name:
            return list(before["steps"])
    except (ValueError, KeyError, TypeError):
        raise UsageError(f"{record}: not the record of a window") from None
    raise UsageError(f"{record}: holds the window {before['plan']!r}: give {name!r} a folder of its own")


def check(plan: Plan) -> None:
    """Raise unless this machine is the one the plan is for: UsageError (wrong or too few GPUs) or SimctlError (busy)."""
    device = "cpu" if plan.gpu is None else "cuda"
    preflight.check(preflight.resolve_device(device), plan.gpu)
    if device == "cuda" and 0 < len(query_gpus()) < plan.gpus:
        raise UsageError(f"this window wants {plan.gpus} GPUs; there are {len(query_gpus())}")


@click.command("window", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name", metavar="PLAN", type=click.Choice(list(PLANS)))
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="Folder for all results; the same one again goes on.")
@click.option("--seconds", type=click.FloatRange(min=10), default=540.0, show_default=True, help="Length of the window.")
@click.option("--dry-run", is_flag=True, help="Print the steps and what is missing here, run nothing.")
def command(name: str, out: Path, seconds: float, dry_run: bool) -> None:
    """Measure what one window of GPU time is for, most informative first, and pack it into one file.

    PLAN names the window. Exit 1 when a step failed; steps cut or not begun for want of time are no failure.
    """
    plan = PLANS[name]
    if dry_run:
        click.echo(f"{name}: {plan.about}")
        for step in plan.steps:
            click.echo(f"{step.name}: at most {step.most_s:.0f} s, begun with {step.least_s:.0f} s left{_lack(step)}")
            click.echo(f"  {' '.join(call_of(step, out / step.name, min(step.most_s, seconds)))}")
        return
    check(plan)
    with terminate_as_interrupt():
        rows = run(name, plan, out, seconds)
    for row in rows:
        click.echo(f"{row['name']:22} {row['seconds']:6.1f} s  {row['status']}")
    click.echo(out / f"{name}.tar.xz")
    sys.exit(1 if any(str(row["status"]).startswith("failed") for row in rows) else 0)


def _lack(step: Step) -> str:
    return f"; here: {lack}" if (lack := missing(step)) else ""


def main() -> None:
    """Run the command."""
    call(command, "python -m hw.window")


if __name__ == "__main__":
    main()
