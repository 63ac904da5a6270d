"""`simctl gates`: do two running servers say the same? Top-1 agreement, KL and perplexity over token sequences that both score."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from hw.gates import compare_servers
from hw.serve.client import Target
from hw.serve.http_stream import split_url
from hw.serve.load_patterns import Prompts
from sim.errors import UsageError

SEQUENCES, LENGTH = 8, 128  # random token ids, where no file has any
LISTED = 5  # log-probabilities asked for per step; servers limit it
LEAST_TOP1, MOST_KL, MOST_PPL = 0.99, 0.01, 0.01  # share of steps; nats per step, mean; relative difference of perplexity


@click.command("gates", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("first")
@click.argument("second")
@click.option("--model", "models", required=True, multiple=True, help="Name the model is served under; given twice: first, second server.")
@click.option(
    "--tokens", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="JSON lines, each a list of token ids to score."
)
@click.option(
    "--vocab-size", type=click.IntRange(min=100), default=32000, show_default=True, help="Without --tokens: random ids stay below this."
)
@click.option("--token-ids", is_flag=True, help="Compare token ids, not texts: for vLLM and llama.cpp's server, which return ids.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    first: str, second: str, models: tuple[str, ...], tokens: Path | None, vocab_size: int, token_ids: bool, as_json: bool,
) -> None:  # fmt: skip
    """Compare the servers at the URLs FIRST and SECOND on the same tokens; exit 1 when a gate does not hold.

    Both score given sequences (teacher forcing), so that one early difference does not carry every later step away. The servers must return
    log-probabilities of prompt tokens (vLLM, SGLang), or with --token-ids those of the next token (llama.cpp's server: a request
    per token, and perplexity over the tokens among the likeliest of both). KL is from FIRST to SECOND over the tokens both list and
    one bucket for all others: a lower bound of the true one.

    \b
    Example:
      simctl gates http://A:8000 http://B:8000 --model NAME --token-ids
    """
    if len(models) > 2:
        raise UsageError("--model: of two servers, two names at the most")
    targets = [_target(first, models[0]), _target(second, models[-1])]
    prompts = Prompts(vocab_size, 0)
    scored = _read(tokens) if tokens else [prompts.draw(index, LENGTH) for index in range(SEQUENCES)]
    found = asyncio.run(compare_servers(targets[0], targets[1], scored, LISTED, token_ids=token_ids))
    failures = found.failures(top1=LEAST_TOP1, kl=MOST_KL, ppl=MOST_PPL)
    if as_json:
        click.echo(json.dumps(asdict(found) | {"failures": failures}))
    else:
        click.echo(f"steps scored        {found.steps}")
        click.echo(f"top-1 agreement     {found.top1:.4f}   (at least {LEAST_TOP1:g})")
        click.echo(f"KL, nats per step   {found.kl_mean:.3g} mean, {found.kl_max:.3g} worst   (mean at most {MOST_KL:g})")
        click.echo(f"perplexity          {found.ppl_ratio_minus_1:+.3%} on {found.scored} tokens   (at most {MOST_PPL:.1%})")
        click.echo("\n".join(f"FAILED: {text}" for text in failures) or "all gates hold")
    sys.exit(1 if failures else 0)


def _target(url: str, model: str) -> Target:
    url = url.rstrip("/").removesuffix("/v1")
    try:
        split_url(url)
    except ValueError as error:
        raise UsageError(str(error)) from None
    return Target(url, model)


def _read(path: Path) -> list[list[int]]:
    """Token-id sequences of two tokens or more, one JSON list a line. Raises UsageError naming the line at fault."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, list) or len(row) < 2 or not all(type(t) is int and t >= 0 for t in row):
            raise UsageError(f"{path.name}:{number}: not a list of two or more token ids")
        found.append(row)
    if not found:
        raise UsageError(f"{path.name}: no sequence in it")
    return found
