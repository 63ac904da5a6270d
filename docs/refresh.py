"""Run the commands shown in the documentation and write what they print beneath them.

A fenced `console` block starts with one line `$ simctl ...`, or `$ python -m hw.X_table ...` of files here; all below it is
that command's output.
`python docs/refresh.py` rewrites the blocks, `python docs/refresh.py --check` exits 1 when one is stale. With documents named
(*.md), it looks at those alone.

Blocks fenced as `text` are slow, need trace files of the reader's own, or show a command that fails. `--all DIR` runs those too, in the
folder DIR that holds the traces; a failing command's line on stderr is shown with its exit code.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SLOW = re.compile(r"```text\n\$ simctl (?P<arguments>[^\n]*)\n(?P<output>.*?)```", re.DOTALL)
BLOCK = re.compile(
    r"```console\n\$ (?P<command>simctl|python -m (?P<module>hw\.\w+_table)) (?P<arguments>[^\n]*)\n(?P<output>.*?)```", re.DOTALL
)


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def printed(arguments: str, module: str | None = None) -> str:
    """What `simctl ARGUMENTS`, or `python -m MODULE ARGUMENTS`, prints on stdout. Raises RuntimeError when it fails."""
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            code = _run(shlex.split(arguments), module)
    except SystemExit as stop:
        code = stop.code
    if code:
        raise RuntimeError(f"{module or 'simctl'} {arguments}: exit {code}")
    return "".join(line.rstrip() + "\n" for line in out.getvalue().splitlines())


def _run(arguments: list[str], module: str | None) -> object:
    if module is None:
        from simctl.cli import main

        return main(arguments)
    with contextlib.chdir(ROOT):  # files are named from there
        return importlib.import_module(module).command.main(arguments, standalone_mode=False)


def refreshed(text: str) -> str:
    return BLOCK.sub(lambda m: f"```console\n$ {m['command']} {m['arguments']}\n{printed(m['arguments'], m['module'])}```", text)


def ran(arguments: str, folder: str) -> str:
    """What `simctl ARGUMENTS`, run in `folder`, prints on stdout; of a failure also its line on stderr. Raises RuntimeError for an
    ending that is not simctl's own (a traceback): no page shows one.
    """
    command = [sys.executable, "-m", "simctl", *shlex.split(arguments)]
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1:] if done.returncode else []
    if done.returncode and not (last and last[0].startswith("simctl: ")):
        raise RuntimeError(f"simctl {arguments}: exit {done.returncode}: {last}")
    failure = f"{done.stderr.strip().splitlines()[-1]}\n(exit {done.returncode})\n" if done.returncode else ""
    return "".join(line.rstrip() + "\n" for line in done.stdout.rstrip().splitlines()) + failure


def main(arguments: list[str]) -> int:
    sys.path.insert(0, str(ROOT))
    stale = []
    folder = arguments[arguments.index("--all") + 1] if "--all" in arguments else None
    named = [Path(argument).resolve() for argument in arguments if argument.endswith(".md")]
    for path in named or documents():
        text = path.read_text(encoding="utf-8")
        new = refreshed(text)
        if folder is not None:
            new = SLOW.sub(lambda m: f"```text\n$ simctl {m['arguments']}\n{ran(m['arguments'], folder)}```", new)
        if new != text:
            stale.append(str(path.relative_to(ROOT)))
            if "--check" not in arguments:
                path.write_text(new, encoding="utf-8")
    if stale:
        print(("stale: " if "--check" in arguments else "refreshed: ") + ", ".join(stale))
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
