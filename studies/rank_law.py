"""`python -m studies.rank_law`: recall of block selection by rank statistics, learnt from short contexts and scored on long ones.

    rank - 1 of the needle's block among N candidates ~ BetaBinomial(N - 1, a, b)

Each needle is beaten by a share of the other blocks, and that share varies from needle to needle as Beta(a, b). It belongs to a haystack,
its distractors and a block size, not to a context or a budget: recall of k blocks at any context follows from the two numbers.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from scipy import optimize, special

from studies.needle_recall.needle_trials import NeedleTrial, published

TABLE = Path("docs/data/recall-retriever.csv")
SHORT = 16384  # tokens: contexts up to here are learnt from
FEW = 0.002
Kind = tuple[str, int, int]  # haystack, distractors, block tokens


@dataclass(frozen=True, slots=True)
class RankCount:
    """`within` of `trials` needles lie in one of the `blocks` best of `candidates` blocks at a context."""

    context: int
    candidates: int
    blocks: int
    within: int
    trials: int


def read(path: Path) -> dict[Kind, list[RankCount]]:
    """Counts by kind, in the order of contexts and blocks."""
    found: dict[Kind, list[RankCount]] = defaultdict(list)
    with path.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            kind = (row["haystack"], int(row["distractors"]), int(row["block_tokens"]))
            numbers = (int(row[name]) for name in ("context_tokens", "candidates", "blocks", "within", "trials"))
            found[kind].append(RankCount(*numbers))
    return found


def recall(a: float, b: float, blocks: int | Sequence[int], candidates: int) -> Any:
    """P(rank <= blocks) of the law."""
    beaten = np.arange(int(np.max(blocks)))
    total = candidates - 1
    logs = special.betaln(beaten + a, total - beaten + b) - special.betaln(a, b)
    logs += special.gammaln(total + 1) - special.gammaln(beaten + 1) - special.gammaln(total - beaten + 1)
    return np.cumsum(np.exp(logs))[np.asarray(blocks) - 1]


def fit(counts: Sequence[RankCount]) -> tuple[float, float]:
    """(a, b) of most likelihood: the counts of a context are those of the bins between its numbers of blocks."""
    by_context: dict[int, list[RankCount]] = defaultdict(list)
    for count in counts:
        by_context[count.context].append(count)

    def loss(logs: Any) -> float:
        a, b = np.exp(logs)
        total = 0.0
        for rows in by_context.values():
            share = recall(a, b, [r.blocks for r in rows], rows[0].candidates)
            bins = np.diff([0.0, *share, 1.0])
            seen = np.diff([0, *(r.within for r in rows), rows[0].trials])
            total -= float(np.sum(seen * np.log(np.maximum(bins, 1e-12))))
        return total

    best = optimize.minimize(loss, np.zeros(2), method="Nelder-Mead", options={"xatol": 1e-3, "fatol": 1e-3, "maxiter": 400})
    return float(np.exp(best.x[0])), float(np.exp(best.x[1]))


def logit(share: float) -> float:
    """Of a share, kept off 0 and 1."""
    return float(special.logit(np.clip(share, FEW, 1 - FEW)))


def drift(counts: Sequence[RankCount]) -> float:
    """What the law misses in a doubling of the context (logit, root mean square): fitted below SHORT, met at SHORT."""
    a, b = fit([c for c in counts if c.context < SHORT])
    missed = [logit(float(recall(a, b, c.blocks, c.candidates))) - logit(c.within / c.trials) for c in counts if c.context == SHORT]
    return float(np.sqrt(np.mean(np.square(missed))))


def scored(counts: Sequence[RankCount], draws: int = 400, seed: int = 0) -> tuple[float, float, list[tuple[float, bool]]]:
    """(a, b, error and whether inside the 90 % interval of every held-out count). The interval lets the law drift in each doubling beyond
    half of SHORT, each by itself, and holds the chance of the needles that were counted.
    """
    rng = np.random.default_rng(seed)
    short, held = [c for c in counts if c.context <= SHORT], [c for c in counts if c.context > SHORT]
    if not held:
        return (*fit(short), [])
    (a, b), step = fit(short), drift(short)
    out = []
    for c in held:
        seen, law = c.within / c.trials, float(recall(a, b, c.blocks, c.candidates))
        sd = step * np.sqrt(1 + np.log2(c.context / SHORT))
        drawn = rng.binomial(c.trials, special.expit(logit(law) + sd * rng.standard_normal(draws))) / c.trials
        low, high = np.quantile(drawn, [0.05, 0.95])
        out.append((law - seen, bool(low <= seen <= high)))
    return a, b, out


def fit_trials(trials: Sequence[NeedleTrial]) -> tuple[float, float]:
    """(a, b) of most likelihood of published trials of one haystack, whatever their contexts, budgets and models."""

    def loss(logs: Any) -> float:
        a, b = np.exp(logs)
        found = [float(recall(a, b, t.k_blocks, candidates(t.context_tokens))) for t in trials]
        share = np.clip(found, 1e-9, 1 - 1e-9)
        hits, count = np.array([t.successes for t in trials]), np.array([t.trials for t in trials])
        return -float(np.sum(hits * np.log(share) + (count - hits) * np.log1p(-share)))

    best = optimize.minimize(loss, [-1.0, 1.0], method="Nelder-Mead", options={"xatol": 1e-3, "fatol": 1e-3, "maxiter": 400})
    return float(np.exp(best.x[0])), float(np.exp(best.x[1]))


def candidates(context: int) -> int:
    """Blocks of 128 tokens that a selection chooses from: all but a sink and two local ones."""
    return context // 128 - 3


def published_lines() -> Iterator[str]:
    """Each published trial beside the law of the others of its haystack, and the budgets that 90 % recall needs by all of them."""
    by_haystack: dict[str, list[NeedleTrial]] = defaultdict(list)
    for trial in published().trials:
        by_haystack[trial.haystack].append(trial)
    errors = []
    for haystack, trials in sorted(by_haystack.items()):
        for i, t in enumerate(trials):
            a, b = fit_trials([*trials[:i], *trials[i + 1 :]])
            seen, law = t.successes / t.trials, float(recall(a, b, t.k_blocks, candidates(t.context_tokens)))
            errors.append(abs(law - seen))
            yield f"{haystack:17} {t.context_tokens // 1024:4}K k {t.k_blocks:2}  published {seen:.3f}  by the others' law {law:.3f}"
        a, b = fit_trials(trials)
        needed = [budget(0.9, a, b, candidates(context)) for context in (2**15, 2**17, 2**20)]
        yield f"{haystack:17} 90 % need k = {needed[0]} at 32K, {needed[1]} at 128K, {needed[2]} at 1M"
    yield f"published: {len(errors)} rows, each left out, median error {np.median(errors):.3f}"


def budget(wanted: float, a: float, b: float, among: int) -> int:
    """Fewest blocks that find a needle with probability `wanted`."""
    every = recall(a, b, list(range(1, among + 1)), among)
    return 1 + int(np.searchsorted(every, wanted))


@click.command()
@click.option("--from", "path", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=TABLE)
def main(path: Path) -> None:
    """Print the law of every kind and its score."""
    click.echo(f"Learnt up to {SHORT} tokens, scored beyond, at budgets from one block to all.")
    click.echo("                                                           4,096 tokens find")
    click.echo("haystack  beside block      a      b  error  (most)  in 90 %     32K   256K")
    every: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for (haystack, distractors, block), counts in sorted(read(path).items(), key=lambda item: (item[0][0], -item[0][2], item[0][1])):
        a, b, found = scored(counts)
        if not found:
            continue
        every[haystack] += found
        errors = np.abs([error for error, _ in found])
        inside = np.mean([ok for _, ok in found])
        same = [f"{recall(a, b, 32 * 128 // block, n // block):.3f}" for n in (32768, 262144)]
        error, most = np.median(errors), errors.max()
        law = f"{haystack:9} {distractors:6} {block:5}  {a:5.3f} {b:6.3f}"
        click.echo(f"{law}  {error:.3f} ({most:.3f})  {100 * inside:3.0f} %  {same[0]:>6} {same[1]:>6}")
    for haystack, scores in every.items():
        middle, inside = np.median([abs(error) for error, _ in scores]), np.mean([ok for _, ok in scores])
        click.echo(f"{haystack}: {len(scores)} counts, median error {middle:.3f}, {100 * inside:.0f} % inside")
    errors, inside = np.array([score for scores in every.values() for score in scores]).T
    click.echo(f"both: {errors.size} counts, median error {np.median(np.abs(errors)):.3f}, {100 * inside.mean():.0f} % inside")
    for line in published_lines():
        click.echo(line)


if __name__ == "__main__":
    main()
