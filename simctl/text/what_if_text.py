"""The what-if answer as text for an 80-column terminal."""

from __future__ import annotations

import click

from sim.closed_form.what_if import MAX_CROSSOVER, Answer, Interval, Option
from sim.units import about_tokens, format_bytes, format_number, format_range, format_seconds, format_tokens
from simctl.text.layout import fill

# Short names of the formula's terms for a narrow column.
BINDS = {
    "fixed": "fixed cost",
    "sequences": "sequences",
    "prefill": "prefill",
    "kernels": "kernels",
    "weights": "weights",
    "kv": "KV reads",
    "state": "state",
    "summaries": "summaries",
    "find": "selection",
    "link": "host link",
    "comm": "all-reduce",
    "launch": "launches",
}


def render(a: Answer) -> None:
    """Print the answer to stdout."""
    q, d = a.question, a.question.deployment
    place = d.placed if d.parallel.parts > 1 or d.parallel.expert else d.gpu.name + (f" x{d.tp}" if d.tp > 1 else "")
    seqs, budget = d.batch_limits()
    click.echo(click.style(f"{d.model.name} on {place}, {format_tokens(q.context)} context ({q.context} tokens)", bold=True))
    _say(f"{d.precision.weights} weights, {d.precision.kv} KV. Rates: {a.rates.summary}.")
    _say(f"{d.limits.engine}: max_num_seqs {seqs}, max_num_batched_tokens {budget}, gpu_memory_utilization {d.limits.memory_share:g}.")
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
    _say(_sources(a))
    _say(f"Knee (dense, efficiency {q.tau:g}): {_knee(a)}; two-term closed form {a.knee_closed_form:.3g}.")
    dense = next(o for o in a.options if o.policy.kind == "dense" and o.policy.placement == "hbm")
    fit = "" if dense.n_max == float("inf") else f" {format_range(*a.n_max_90)}"
    _say(f"n_max: {_count(dense.n_max)}{fit} sequences of this context fit in HBM (dense).")
    for batch in dict.fromkeys(batch for _, batch in a.crossovers):
        parts = [_crossover(a, k, batch) for k in sorted({min(q.ks), max(q.ks)})]
        _say(f"Crossover, batch {batch}: block-128 beats dense, both in HBM, {'; '.join(parts)}.")
    _say("Fidelity risk (published needle trials, 5-95 %):")
    for line in a.fidelity:
        _say("- " + line, indent="  ")
    for line in a.notes:
        _say("Note: " + line)
    click.echo()
    for line in a.recommendation:
        click.echo(fill("=> " + line[0].upper() + line[1:], later="   "))


def _sources(a: Answer) -> str:
    """Where the brackets come from: rates, apart from what one run does that the formula does not foresee."""
    widths = [_half_width(o.step_s_rates) for o in a.options if o.feasible] or [_half_width(o.step_s_rates) for o in a.options]
    best, worst = _within(min(widths)), _within(max(widths))
    spread = best if best == worst else f"{best} for the best-known option and {worst} for the worst"
    text = f"Intervals: this GPU's rates are known to within {spread}"
    if a.residual is None:
        return text + "."
    return (
        f"{text}; the formula's residual in one run is {_within(_half_width(a.residual))}. Speed-ups, knee and crossovers hold only the "
        "first: in a ratio the residual cancels."
    )


def _half_width(i: Interval) -> float:
    return 100 * ((i.high / i.low) ** 0.5 - 1)


def _within(half_width: float) -> str:
    return f"{half_width:.1f} %" if half_width < 100 else f"a factor of {1 + half_width / 100:.1f}"


def _crossover(a: Answer, k: int, batch: int) -> str:
    context = a.crossovers[k, batch]
    if context is None:
        return f"nowhere below {about_tokens(MAX_CROSSOVER)} tokens (top-{k})"
    low, high = a.crossovers_90[k, batch]
    top = about_tokens(high) if high < MAX_CROSSOVER else f"beyond {about_tokens(MAX_CROSSOVER)}"
    return f"from about {about_tokens(context)} tokens [{about_tokens(low)}-{top}] (top-{k})"


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


def _knee(a: Answer) -> str:
    if a.knee.censored:
        return f"not crossed up to batch {a.knee.batch:g}"
    low, high = (f"beyond {k.batch:g}" if k.censored else f"{k.batch:.3g}" for k in a.knee_90)
    return f"batch {a.knee.batch:.3g} [{low}-{high}]"


def _count(n: float) -> str:
    return "any number of" if n == float("inf") else format_number(n, 3)


def _say(text: str, indent: str = "") -> None:
    click.echo(fill(text, indent, 2 * indent, whole=True))
