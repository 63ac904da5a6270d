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


@click.command("gates", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("first")
@click.argument("second")
@click.option("--model", required=True, help="Name the first server serves the model under.")
@click.option("--second-model", default=None, help="Name at the second server; the same by default.")
@click.option(
    "--tokens", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="JSON lines, each a list of token ids to score."
)
@click.option("--sequences", type=click.IntRange(1), default=8, show_default=True, help="Without --tokens: random sequences to score.")
@click.option("--length", type=click.IntRange(2), default=128, show_default=True, help="Without --tokens: token ids of each.")
@click.option("--vocab-size", type=click.IntRange(min=100), default=32000, show_default=True, help="Without --tokens: ids stay below.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random sequences.")
@click.option("--top", type=click.IntRange(1), default=5, show_default=True, help="Log-probabilities asked for per step; servers limit it.")
@click.option("--top1", type=click.FloatRange(0, 1), default=0.99, show_default=True, help="Least top-1 agreement.")
@click.option("--kl", type=click.FloatRange(min=0), default=0.01, show_default=True, help="Most KL, nats per step, mean.")
@click.option("--ppl", type=click.FloatRange(min=0), default=0.01, show_default=True, help="Most perplexity difference, relative.")
@click.option("--token-ids", is_flag=True, help="Compare by token id, not text: for vLLM and llama.cpp's server, which tell them.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    first: str, second: str, model: str, second_model: str | None, tokens: Path | None, sequences: int, length: int, vocab_size: int,
    seed: int, top: int, top1: float, kl: float, ppl: float, token_ids: bool, as_json: bool,
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
    targets = [_target(first, model), _target(second, second_model or model)]
    prompts = Prompts(vocab_size, seed)
    scored = _read(tokens) if tokens else [prompts.draw(index, length) for index in range(sequences)]
    found = asyncio.run(compare_servers(targets[0], targets[1], scored, top, token_ids=token_ids))
    failures = found.failures(top1=top1, kl=kl, ppl=ppl)
    if as_json:
        click.echo(json.dumps(asdict(found) | {"failures": failures}))
    else:
        click.echo(f"steps scored        {found.steps}")
        click.echo(f"top-1 agreement     {found.top1:.4f}   (at least {top1:g})")
        click.echo(f"KL, nats per step   {found.kl_mean:.3g} mean, {found.kl_max:.3g} worst   (mean at most {kl:g})")
        click.echo(f"perplexity          {found.ppl_ratio_minus_1:+.3%} on {found.scored} tokens   (at most {ppl:.1%})")
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
