"""Run the commands shown in the documentation and write what they print beneath them.

A fenced `console` block starts with one line `$ simctl ...`; all below it is that command's output.
`python docs/refresh.py` rewrites the blocks, `python docs/refresh.py --check` exits 1 when one is stale.
Blocks that need files of the reader's own are fenced as `text` and left alone.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"```console\n\$ simctl (?P<arguments>[^\n]*)\n(?P<output>.*?)```", re.DOTALL)


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def printed(arguments: str) -> str:
    """What `simctl ARGUMENTS` prints on stdout. Raises RuntimeError when it fails."""
    from simctl.cli import main

    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            code = main(shlex.split(arguments))
    except SystemExit as stop:
        code = stop.code
    if code:
        raise RuntimeError(f"simctl {arguments}: exit {code}")
    return "".join(line.rstrip() + "\n" for line in out.getvalue().splitlines())


def refreshed(text: str) -> str:
    return BLOCK.sub(lambda m: f"```console\n$ simctl {m['arguments']}\n{printed(m['arguments'])}```", text)


def main(arguments: list[str]) -> int:
    sys.path.insert(0, str(ROOT))
    stale = []
    for path in documents():
        text = path.read_text(encoding="utf-8")
        new = refreshed(text)
        if new != text:
            stale.append(str(path.relative_to(ROOT)))
            if "--check" not in arguments:
                path.write_text(new, encoding="utf-8")
    if stale:
        print(("stale: " if "--check" in arguments else "refreshed: ") + ", ".join(stale))
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
