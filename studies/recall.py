"""Needle recall of sparse decoding, learnt from the published trials.

python -m studies.recall [--out recall.json] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from sim.files import writable
from simctl.text.layout import aligned
from studies.program import program


def run(out: Path | None, draws: int, chains: int, seed: int, as_json: bool) -> None:
    """Fit, print every published cell beside what as many trials at a cell like it, never tried, would show; write the JSON to `out`."""
    import numpy as np

    from calibrate.sampling import Settings
    from studies.needle_recall.needle_trials import published
    from studies.needle_recall.package import learn, write

    evidence = published()
    model, diagnostics = learn(evidence, Settings(draws=draws, tune=2000, chains=chains, seed=seed, target_accept=0.995))
    rows, rng = [], np.random.default_rng([seed, 95])
    for t in evidence.trials:
        recall = model.predict(t.model, t.haystack, t.context_tokens, t.k_blocks)
        low, median, high = np.quantile(rng.binomial(t.trials, recall) / t.trials, [0.05, 0.5, 0.95])
        rows.append({"model": t.model, "haystack": t.haystack, "context_tokens": t.context_tokens, "k_blocks": t.k_blocks,
                     "trials": int(t.trials), "observed": t.successes / t.trials, "median": median, "low": low, "high": high})  # fmt: skip
    drawn = {f"context_slope, {text}": values for text, values in model.context.items()}
    drawn |= {n: model.scalars[n] for n in ("context_log_sd", "cell_sd", "haystack_sd", "model_sd")}
    scalars = {name: np.quantile(values, [0.05, 0.5, 0.95]).tolist() for name, values in drawn.items()}
    if as_json:
        click.echo(json.dumps({"cells": rows, "parameters": scalars, **asdict(diagnostics)}, indent=1))
    else:
        _show(rows, scalars)
        click.echo(
            f"R-hat <= {diagnostics.rhat_max:.4f}, effective sample size >= {diagnostics.ess_min:.0f}, "
            f"{diagnostics.divergences} divergences"
        )
    diagnostics.require()
    if out is not None:
        write(out, model)
        click.echo(f"wrote {out}", err=True)


def _show(rows: list[dict[str, Any]], scalars: dict[str, list[float]]) -> None:
    from sim.units import format_tokens

    lines = [
        (r["model"], r["haystack"], format_tokens(r["context_tokens"]), str(r["k_blocks"]), str(r["trials"]), f"{r['observed']:.3f}",
         f"{r['median']:.3f} [{r['low']:.2f}-{r['high']:.2f}]" + ("" if r["low"] <= r["observed"] <= r["high"] else " out"))
        for r in rows
    ]  # fmt: skip
    for line in aligned(("model", "haystack", "ctx", "k", "n", "found", "n more trials there"), lines, left=7, gap=1):
        click.echo(line)
    for name, (low, median, high) in scalars.items():
        click.echo(f"{name} {median:.2f} [{low:.2f}-{high:.2f}]")


@program("studies.recall")
def main(argv: Sequence[str]) -> int:
    """Learn, print, write. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m studies.recall")
    parser.add_argument("--out", type=Path, help="write the packaged JSON here")
    parser.add_argument("--draws", type=int, default=3000, help="draws per chain: two texts hardly tell how much texts differ")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    run(writable(args.out), args.draws, 4, args.seed, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
