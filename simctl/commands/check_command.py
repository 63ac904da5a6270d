"""`simctl check`: is a server as fast as it should be, by logs of it, and if not, why?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from sim.errors import UsageError
from sim.files import writable, write_text
from simctl.options.option_groups import Sectioned
from simctl.options.shared_options import log_options

SECTIONS = {
    "What a log does not say of its server": (
        "from-deployment", "model", "gpu", "dtype", "tp", "engine", "max-num-seqs", "max-num-batched-tokens", "max-concurrency",
        "log-option",
    ),
}  # fmt: skip
MOST_TEXT = 1 << 20  # characters of a summary on stdin


@click.command("check", cls=Sectioned, sections=SECTIONS)
@click.argument("logs", nargs=-1, required=True, metavar="LOG...")
@log_options()
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Write the host that was learnt, for --host of any command.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(logs: tuple[str, ...], out: Path | None, as_json: bool, **options: Any) -> None:
    """Is my server as fast as it should be, and if not, why?

    Each LOG is a file of the same server: a result of any benchmark that `simctl validate` reads, gzipped or not, or what
    `simctl measure --url` wrote. Or a summary: the printed block of `vllm bench serve` or SGLang, GuideLLM's tables, llama-bench's, or a
    line; as text, or on stdin with -.

    The verdict is one line: how much slower than such a server should be, which factor does it (the host's launches and own work, the
    GPU's clock, the GPU, cached prompts), what that costs, and what to do.

    \b
    Examples:
      simctl check LOW.json HIGH.json --from-deployment compose.yaml --gpu h100
      simctl check LOG.csv.gz --gpu h100 --model Llama-3.1-8B --out host.json
      simctl check '41 tok/s on 4 x 3090' --model Qwen3-32B
    """
    from simctl.from_options.check_question import check_of
    from simctl.text.check_text import show

    target = writable(out)
    answer = check_of([_stdin() if each == "-" else each for each in logs], options).answer()
    text = answer.host.text() if target is not None else ""
    if as_json:
        click.echo(json.dumps(answer.to_dict(), indent=1, allow_nan=False))
    else:
        show(answer)
    if target is not None:
        write_text(target, text)
        click.echo(f"wrote {target}", err=True)


def _stdin() -> str:
    text = sys.stdin.read(MOST_TEXT + 1)
    if len(text) > MOST_TEXT:
        raise UsageError("-: more than a summary on stdin: give the file")
    return text
