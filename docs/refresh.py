"""Refresh of the command output that the documentation shows.

A block fenced as `console` starts with `$ simctl ...` or `$ python -m MODULE ...`; the lines below are that command's output.
`console slow` marks a block whose command takes more than a few seconds.

    python docs/refresh.py [--slow] [--check] [PAGE.md ...]     rewrite the blocks, or exit 1 when one is stale
    python docs/refresh.py --data [NAME.txt ...]                rewrite the long outputs, docs/data/*.txt (minutes)
    python docs/refresh.py --pictures                           draw the pictures that commands draw, docs/img/*.svg
    python docs/refresh.py --notebooks [FILE.ipynb ...]         run the notebooks and keep their outputs (minutes)
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"```console(?P<slow> slow)?\n\$ (?P<command>[^\n]*)\n(?P<output>.*?)```", re.DOTALL)
# Long outputs by file; the exit code says whether every score is in its bound.
DATA = {
    "calibrate-h100.txt": "simctl calibrate --hw h100",
    "calibrate-h200.txt": "simctl calibrate --hw h200",
    "checked-servers.txt": "python -m studies.checked_servers",
    "field.txt": "python -m studies.field",
    "kv-capacity.txt": "python -m studies.kv_capacity",
    "kv-pools.txt": "python -m studies.kv_capacity --public",
    "learned-hosts.txt": "python -m studies.learned_hosts",
    "learned-hosts-check.txt": "python -m studies.learned_hosts --check",
    "left-out-widths.txt": "python -m studies.left_out_widths",
    "plan-questions.txt": "python -m studies.plan_questions",
    "recall.txt": "python -m studies.recall",
    "validate.txt": "simctl validate",
}
# Runs that commands of the pages read, by folder: each is simulated before the first of them.
RUNS = {
    "out/agents": "simctl simulate --gpu H100 --model Qwen3-Coder-30B-A3B --kv-dtype fp8 --max-model-len auto --replicas 2 --router unified"
    " --agent-sessions 24 --request-rate 1.2 --draws 0 --out out/agents",
}
# Pictures by file, less the `--plot FILE` of each. Others are drawn by studies.replication and docs/kernels_page.py.
PICTURES = {
    "a10_what_if.svg": "simctl what-if --ctx 1M --gpu A10 --k 32",
    "h100_regime_map.svg": "simctl what-if --ctx 1M --gpu H100 --map hbm",
    "h100_bursts.svg": "simctl simulate --gpu H100 --model Llama-3.1-8B --num-prompts 3000 --request-rate 12 --burstiness 0.02"
    " --random-input-len 1500 --random-output-len 200 --random-length-cv 1 --random-prefix-len 512 --draws 0",
    "explain_agents.svg": "simctl explain out/agents 32",
}


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def printed(command: str, allowed: tuple[int, ...] = (0,)) -> str:
    """Standard output of a command line. Raises RuntimeError unless the exit code is an allowed one."""
    program, *rest = shlex.split(command)
    for folder in RUNS:
        if folder in rest and "--out" not in rest:
            _simulated(folder)
    call = [sys.executable, *(["-m", "simctl"] if program == "simctl" else []), *rest]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(call, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in allowed:
        raise RuntimeError(f"{command}: exit {done.returncode}: {done.stderr.strip()[-300:]}")
    return "".join(line.rstrip() + "\n" for line in done.stdout.splitlines())


@cache
def _simulated(folder: str) -> None:
    printed(RUNS[folder])


def refreshed(text: str, slow: bool) -> str:
    """The page with every console block rewritten; slow blocks only if asked."""

    def block(found: re.Match[str]) -> str:
        if found["slow"] and not slow:
            return found[0]
        scored = (0, 1) if " validate " in found["command"] else (0,)  # 1: a score lies outside its bound, and the page says so
        return f"```console{found['slow'] or ''}\n$ {found['command']}\n{printed(found['command'], scored)}```"

    return BLOCK.sub(block, text)


def run_notebooks(paths: list[Path]) -> None:
    """Notebooks run from top to bottom, each written with its outputs."""
    import nbformat
    from nbclient import NotebookClient

    for path in paths:
        notebook = nbformat.read(path, as_version=4)
        NotebookClient(notebook, timeout=900, record_timing=False, resources={"metadata": {"path": str(ROOT)}}).execute()
        nbformat.write(notebook, path)


def main(arguments: list[str]) -> int:
    if "--data" in arguments:
        for name in [each for each in arguments if each in DATA] or DATA:
            command = DATA[name]
            (ROOT / "docs" / "data" / name).write_text(f"$ {command}\n{printed(command, (0, 1))}", encoding="utf-8")
        return 0
    if "--pictures" in arguments:
        for name, command in PICTURES.items():
            printed(f"{command} --plot {ROOT / 'docs' / 'img' / name}")
        return 0
    if "--notebooks" in arguments:
        run_notebooks([Path(each) for each in arguments if each.endswith(".ipynb")] or sorted((ROOT / "notebooks").glob("*.ipynb")))
        return 0
    stale = []
    for path in [Path(argument).resolve() for argument in arguments if argument.endswith(".md")] or pages():
        text = path.read_text(encoding="utf-8")
        new = refreshed(text, "--slow" in arguments)
        if new != text:
            stale.append(str(path.relative_to(ROOT)))
            if "--check" not in arguments:
                path.write_text(new, encoding="utf-8")
    if stale:
        print("stale: " if "--check" in arguments else "refreshed: ", ", ".join(stale), sep="")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
