"""The what-if answer as text for an 80-column terminal: a verdict, a table, and the rest where asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import click

from sim.closed_form.what_if import MAX_CROSSOVER, Answer
from sim.closed_form.what_if_options import Interval, Option
from sim.rates.load import OUTSIDE
from sim.specs.context import beyond_context
from sim.specs.decode_stack import ENGINE, stack_named
from sim.units import about_tokens, format_bytes, format_number, format_range, format_seconds, format_tokens
from simctl.text.heading import dtype_words, grounds, model_title
from simctl.text.layout import fill

LASTING = ((60.0, "min"), (1.0, "s"), (1e-3, "ms"))
POOLED = "hierarchy over GPUs"  # evidence that takes a page to explain
SCREEN = 24  # lines of a terminal


def render(a: Answer, explain: bool = False) -> None:
    """Print the answer to stdout: what fits one screen or, to `explain` it, all there is."""
    q, d = a.question, a.question.deployment
    place = d.placed if d.parallel.parts > 1 or d.parallel.expert else d.gpu.name + (f" x{d.tp}" if d.tp > 1 else "")
    title = f"{model_title(d.model.name)} on {place}, {format_tokens(q.context)} context ({q.context} tokens)"
    lines = [fill("=> " + text[0].upper() + text[1:], later="   ", whole=True) for text in a.recommendation]
    beyond = beyond_context(d.model.name, d.model.max_context, q.context)
    lines += [fill(f"   {text}", later="   ") for text in beyond]
    lines += ["", click.style(fill(title), bold=True), _filled(_memory(a) + _session(a))]
    listed = [o for o in a.options if explain or _on_first_screen(a, o)]
    for batch in q.batches:
        lines += ["", f"{f'batch {batch}, reads':<22}{'KV':<4}{'step':>8} {'tok/s [5-95 %]':<18}{'speed-up':<10}binds"]
        lines += [_line(o) for o in listed if o.batch == batch]
    lines += _stacks(a) if a.others else [""]
    told = a.notes[len(beyond) :]
    if not explain:
        told = [text for text in told if (a.rates.source.measured or not text.startswith(OUTSIDE)) and POOLED not in text]
    notes = [_filled(f"Note: {text}") for text in told]
    if explain:
        lines += [*_explained(a), *notes]
    else:
        lines.append(_filled(_trust(a)))
        rest = " other selections," if len(listed) < len(a.options) else ""
        rest = f"--explain:{rest} batching, crossovers, recall, sources"
        lines += _fitting(notes, SCREEN - sum(line.count("\n") + 1 for line in lines) - 2, rest)
    for line in lines:
        click.echo(line)


def _stacks(a: Answer) -> Iterator[str]:
    """Tok/s per sequence of every stack at the first batch: a line a stack, the answer's own first."""
    k = a.recommended_k[a.question.batches[0]] or max(a.question.budgets)
    columns = [("dense", 0, "hbm"), ("dense", 0, "host"), ("blocks", k, "hbm"), ("blocks", k, "host")]
    heads = ("dense HBM", "dense RAM", f"top {k} HBM", f"top {k} RAM")
    yield f"{'tok/s by stack':<17}" + _cells(heads)
    for name, options in {a.question.runner.name: a.options, **a.others}.items():
        first = [o for o in options if o.batch == a.question.batches[0]]
        found: dict[tuple[str, int, str], Option] = {(o.policy.kind, o.policy.k, o.policy.placement): o for o in first}
        yield f"{name:<17}" + _cells([_cell(found[column]) for column in columns])


def _cells(texts: Sequence[str]) -> str:
    return "".join(f" {text:>{width}}" for text, width in zip(texts, (13, 16, 13, 16), strict=True))


def _cell(o: Option) -> str:
    if not o.feasible:
        return "-" if stack_named(o.stack).lacks(o.policy) else "does not fit"
    return f"{o.tokens_per_s.point:.3g} {_range(o.tokens_per_s)}"


def _fitting(notes: list[str], room: int, rest: str) -> list[str]:
    """As many notes as so many lines hold, and where the `rest` is."""
    kept: list[str] = []
    for note in notes:
        if sum(line.count("\n") + 1 for line in [*kept, note]) <= room:
            kept.append(note)
    left = len(notes) - len(kept)
    return [*kept, _filled(f"{rest}{f', {left} more notes' if left else ''}.")]


def _memory(a: Answer) -> str:
    """GPU memory left for KV, and the number of sequences that it holds."""
    memory, dense = a.memory, next(o for o in a.options if o.policy.kind == "dense" and o.policy.placement == "hbm")
    used = f"{format_bytes(memory.weights)} weights and {format_bytes(memory.activations)} activations"
    fit = "any number of" if dense.n_max == float("inf") else f"{format_number(dense.n_max, 3)} {format_range(*a.n_max_90)}"
    return f"Of {format_bytes(memory.allowed)} per GPU {used} leave {format_bytes(max(0.0, memory.free))} for KV: {fit} such sequences."


def _session(a: Answer) -> str:
    """Time to read the prompt, pinned host RAM, and what both cost, of the first batch's best way."""
    q, found = a.question, a.ways[a.question.batches[0]]
    if a.prefill is None or not found:
        return ""
    way, each_gpu = found[0], q.deployment.gpu.price_per_hour
    scale, unit = next(each for each in LASTING if a.prefill.point >= each[0] * (10 if each[0] > 1 else 1) or each == LASTING[-1])
    read = f"{a.prefill.point / scale:.3g} {unit} [{_short(a.prefill.low / scale)}-{_short(a.prefill.high / scale)}]"
    host = q.deployment.request_bytes(q.context, way.policy)[1]
    pinned = f", {format_bytes(host)} of pinned host RAM" if host else ""
    cost = ""
    if each_gpu is not None:
        usd = each_gpu * q.deployment.gpus
        per_second = usd / 3600
        cost = f", {per_second * a.prefill.point:.2g} USD; then {1e3 * per_second / way.total:.2g} USD for 1,000 tokens ({usd:.4g} USD/h)"
    return f" Prefill of one: {read}{pinned}{cost}."


def _on_first_screen(a: Answer, o: Option) -> bool:
    """Whether it is no selection, or one that fits and that the verdict speaks of (else the largest)."""
    if o.policy.kind == "sink-window":
        return o.policy.placement == "hbm" and o.feasible  # host RAM adds nothing to a cache that is dropped
    return not o.policy.selects or (o.feasible and o.policy.k == (a.recommended_k[o.batch] or max(a.question.budgets)))


def _trust(a: Answer) -> str:
    """Evidence behind the rates and their uncertainty, in a sentence."""
    widths = [half_width(o.step_s) for o in [o for o in a.options if o.feasible] or a.options]
    best, worst = within(min(widths)), within(max(widths))
    span = best if best == worst else f"{best.removesuffix(worst[-2:])} to {worst}"
    q = a.question
    if q.runner.name != ENGINE:
        name = q.runner.name if q.runner.in_engine else _capital(q.runner.name)
        return f"{name}: {q.runner.what}, {q.runner.available}. {_capital(a.rates.summary)}; steps within {span}."
    return f"{grounds(q.deployment, a.rates)}; steps are known to within {span}."


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _explained(a: Answer) -> Iterator[str]:
    """Grounds of the verdict and the table, a paragraph each."""
    q, d = a.question, a.question.deployment
    seqs, budget = d.batch_limits()
    yield _filled(f"{_trust(a)} Rates: {a.rates.summary}.")
    if a.residual is not None:
        yield _filled(
            f"One run differs from the formula by {within(half_width(a.residual))} more, which the intervals hold; in ratios it cancels."
        )
    if q.runner.name != ENGINE:
        yield _filled(_rates(a))
    if a.prefill_rates is not None:
        linear, attention = a.prefill_rates.linear_flops_per_s / 1e12, a.prefill_rates.attention_flops_per_s / 1e12
        yield _filled(f"Prefill is the engine's: GEMMs at {linear:.3g} Tflop/s, attention at {attention:.3g} Tflop/s.")
    yield _filled(f"{dtype_words(d.model, d.precision)} weights, {d.precision.kv} KV.")
    yield _filled(
        f"{d.limits.engine}: max_num_seqs {seqs}, max_num_batched_tokens {budget}, gpu_memory_utilization {d.limits.memory_share:g}."
    )
    yield _filled(
        f"Batch knee (dense): up to batch {_knee(a)} a request keeps {q.tau:.0%} of its batch-1 speed; counting bytes only, up to "
        f"{a.knee_closed_form:.3g}."
    )
    between = a.crossovers_90
    for batch in dict.fromkeys(batch for _, batch in a.crossovers):
        parts = [_crossover(a, between, k, batch) for k in sorted({min(q.budgets), max(q.budgets)})]
        yield _filled(f"Selected blocks beat dense, both in HBM, at batch {batch}: {'; '.join(parts)}.")
    yield _filled("Does selection still find what it needs? Published trials with a hidden sentence (a needle), share found, 5-95 %:")
    for line in a.fidelity:
        yield _filled("- " + line, indent="  ")


def _rates(a: Answer) -> str:
    """Median rates that a step of a stack other than an engine is priced by."""
    r = a.rates.point
    return (
        f"Medians: weights at {r.beta / 1e9:.4g} GB/s, KV at {r.beta_kv / 1e9:.4g} GB/s, host link at {r.link_bytes_per_s / 1e9:.4g} GB/s; "
        f"{1e6 * r.c0_s:.3g} us a step, {1e6 * r.kernel_s:.3g} us a kernel; selection {1e6 * r.c1_s:.3g} us a layer and "
        f"{1e6 * r.c1_unit_s:.3g} us a block of it; gather from host RAM {1e6 * r.gather_s:.3g} us a layer."
    )


def half_width(i: Interval) -> float:
    """Half the width of an interval, in per cent of its middle."""
    return 100 * (float((i.high / i.low) ** 0.5) - 1)


def within(per_cent: float) -> str:
    """That width in words."""
    return f"{per_cent:.1f} %" if per_cent < 100 else f"a factor of {1 + per_cent / 100:.1f}"


def _crossover(a: Answer, between: Mapping[tuple[int, int], tuple[float, float]], k: int, batch: int) -> str:
    context = a.crossovers[k, batch]
    if context is None:
        return f"top {k} nowhere below {about_tokens(MAX_CROSSOVER)} tokens"
    low, high = between[k, batch]
    most = about_tokens(high) if high < MAX_CROSSOVER else f"beyond {about_tokens(MAX_CROSSOVER)}"
    return f"top {k} from about {about_tokens(context)} tokens [{about_tokens(low)}-{most}]"


def _line(o: Option) -> str:
    head = f"{o.policy.label.split(' (')[0]:<22}{'RAM' if o.policy.placement == 'host' else 'HBM':<4}"
    if not o.feasible:
        return head + f"no: {o.reason}"
    speed = "-"
    if o.speedup:
        unsure = "?" if o.speedup.low < 1 < o.speedup.high else ""
        speed = "1x (base)" if o.speedup.low == o.speedup.high == 1 else f"{o.speedup.point:.3g}x{unsure}"
    rate = f"{o.tokens_per_s.point:.3g} {_range(o.tokens_per_s)}"
    return head + f"{format_seconds(o.step_s.point):>8} {rate:<18}{speed:<10}{o.binding}"


def _range(i: Interval) -> str:
    return f"[{_short(i.low)}-{_short(i.high)}]"


def _short(value: float) -> str:
    """Two significant digits, three above 100: the ends of an interval deserve no more."""
    return f"{value:.0f}" if value >= 99.5 else f"{value:.2g}"


def _knee(a: Answer) -> str:
    if a.knee.censored:
        return f"{a.knee.batch:g} and beyond"
    low, high = (f"beyond {k.batch:g}" if k.censored else f"{k.batch:.3g}" for k in a.knee_90)
    return f"{a.knee.batch:.3g} [{low}-{high}]"


def _filled(text: str, indent: str = "") -> str:
    return fill(text, indent, 2 * indent, whole=True)
