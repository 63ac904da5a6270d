"""The what-if answer as text for an 80-column terminal."""

from __future__ import annotations

import textwrap

import click

from sim.knee import Knee
from sim.units import format_bytes, format_seconds, format_tokens
from sim.whatif import Answer, Interval, Option

WIDTH = 80
# Short names of the formula's terms for a narrow column.
BINDS = {
    "fixed": "fixed cost",
    "sequences": "sequences",
    "prefill": "prefill",
    "weights": "weights",
    "kv": "KV reads",
    "state": "state",
    "summaries": "summaries",
    "find": "finding",
    "link": "host link",
    "comm": "all-reduce",
    "launch": "launches",
}


def render(a: Answer) -> None:
    """Print the answer to stdout."""
    q = a.question
    tp = f" x{q.tp}" if q.tp > 1 else ""
    click.echo(click.style(f"{q.model.name} on {q.gpu.name}{tp}, {format_tokens(q.context)} context ({q.context} tokens)", bold=True))
    _say(f"{q.precision.weights} weights, {q.precision.kv} KV. Rates: {a.rates_summary}.")
    _say(
        f"Memory per GPU: {format_bytes(a.memory.allowed)} usable, weights {format_bytes(a.memory.weights)}, "
        f"activations {format_bytes(a.memory.activations)}, {format_bytes(max(0.0, a.memory.free))} free for KV."
    )
    for batch in q.batches:
        click.echo()
        click.echo(click.style(f"Batch {batch}", bold=True) + ": one decode step; tok/s per sequence; 5-95 % in brackets")
        click.echo(f"{'attention':<17}{'KV':<5}{'step':>8} {'tok/s [5-95%]':<18}{'speed-up':<19}binds")
        for o in a.options:
            if o.batch == batch:
                click.echo(_line(o))
    click.echo()
    _say(f"Knee (dense, efficiency {q.tau:g}): {_knee(a.knee)}; two-term closed form {a.knee_closed_form:.3g}.")
    dense = next(o for o in a.options if o.policy.kind == "dense" and o.policy.placement == "hbm")
    _say(f"n_max: {_count(dense.n_max)} sequences of this context fit in HBM (dense).")
    for (k, batch), context in a.crossovers.items():
        if k in (min(q.ks), max(q.ks)):
            at = f"from about {format_tokens(round(context))} tokens" if context else "nowhere below 16M tokens"
            _say(f"Crossover, batch {batch}: block-128 top-{k} beats dense in HBM {at}.")
    _say("Fidelity risk (published needle trials, 5-95 %):")
    for line in a.fidelity:
        _say("- " + line, indent="  ")
    for line in a.notes:
        _say("Note: " + line)
    click.echo()
    for line in a.recommendation:
        click.echo("\n".join(textwrap.wrap("=> " + line[0].upper() + line[1:], WIDTH, subsequent_indent="   ")))


def _line(o: Option) -> str:
    name = o.policy.label.rsplit(",", 1)[0].replace("sink+window", "window")
    place = "host" if o.policy.placement == "host" else "HBM"
    head = f"{name:<17}{place:<5}"
    if not o.feasible:
        return head + f"no: {o.reason}"
    speed = "-"
    if o.speedup:
        speed = "1x (base)" if o.speedup.low == o.speedup.high == 1 else f"{o.speedup.point:.3g}x {_range(o.speedup)}"
    rate = f"{o.tokens_per_s.point:.3g} {_range(o.tokens_per_s)}"
    return head + f"{format_seconds(o.step_s.point):>8} {rate:<18}{speed:<19}{BINDS[o.binding]}"


def _range(i: Interval) -> str:
    return f"[{_short(i.low)}-{_short(i.high)}]"


def _short(value: float) -> str:
    """Two significant digits, three above 100: the ends of an interval deserve no more."""
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}"


def _knee(knee: Knee) -> str:
    return f"not crossed up to batch {knee.batch:g}" if knee.censored else f"batch {knee.batch:.3g}"


def _count(n: float) -> str:
    return "any number of" if n == float("inf") else f"{n:.3g}"


def _say(text: str, indent: str = "") -> None:
    click.echo("\n".join(textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + ("  " if indent else ""))))
