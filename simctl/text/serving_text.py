"""The answer for people who serve as text for an 80-column terminal: a verdict, a line a number of users, and what it rests on."""

from __future__ import annotations

from collections.abc import Sequence

from sim.closed_form.fixes import Fix
from sim.closed_form.serving_at_context import Load, Serving, prompt_tokens
from sim.closed_form.what_if_options import Interval
from sim.rates.assumed import assumed
from sim.rates.load import OUTSIDE, scope_notes
from sim.specs.context import beyond_context
from sim.units import format_bytes, format_number, format_range, format_seconds, format_tokens
from simctl.text.heading import grounds, model_title
from simctl.text.layout import aligned, fill
from simctl.text.what_if_text import half_width, within

SCREEN = 15  # lines
HEADER = ("users", "tok/s each", "answer in", "in all", "USD/Mtok out")


def serving_lines(s: Serving, explained: bool = False) -> list[str]:
    """The screen: where all is `explained` below it, without notes and the way to them."""
    q, d = s.question, s.question.deployment
    place = d.placed if d.gpus > 1 else d.gpu.name
    prompt = prompt_tokens(q.context, s.output_tokens)
    beyond = [fill(f"   {text}", later="   ") for text in beyond_context(d.model.name, d.model.max_context, q.context)]
    lines = ["\n".join([fill("=> " + _verdict(s, place), later="   ", whole=True), *beyond]), ""]
    lines.append(fill(f"{model_title(d.model.name)} on {place}: {prompt} tokens in, {s.output_tokens} out"))
    if s.loads:
        cost = "" if s.usd_per_mtok_in is None else f"; {_usd(s.usd_per_mtok_in)} USD/Mtok in"
        lines.append(fill(f"Time to first token, one user: {_seconds(s.ttft_s)}{cost}."))
        figures = aligned(HEADER, [_row(s, load) for load in s.loads])
        lines += [f"{line}  {end}" for line, end in zip(figures, ["binds", *(load.binds for load in s.loads)], strict=True)]
    memory = d.memory()
    taken = f"{format_bytes(memory.weights)} weights, {format_bytes(memory.activations)} activations"
    low, high = (format_number(each, 3) for each in sorted(s.fit_90))
    room = f"{low if low == high else f'{low} to {high}'} users"
    lines.append(fill(f"KV has {format_bytes(max(0.0, memory.free))} of {format_bytes(memory.allowed)} per GPU ({taken}): {room}."))
    if explained:
        return lines
    steps = [load.tokens_per_s for load in s.loads]
    known = f"; speeds are known to within {within(max(map(half_width, steps)))}" if steps else ""
    lines.append(fill(f"{grounds(d, s.rates)}{known}."))
    rest = "--explain: batching, memory, sources; --sparse: sparse attention."
    # what would move the answer stands below its verdict, whatever room there is
    taken_lines = [line for text in assumed(d, s.rates) for line in fill(f"   {text}", later="   ").splitlines()]
    lines = "\n".join([lines[0], *taken_lines, *lines[1:]]).splitlines()
    for note in (fill(f"Note: {text}").splitlines() for text in scope_notes(d, s.rates) if text.startswith(OUTSIDE)):
        if len(lines) + len(note) < SCREEN:
            lines += note
    return [*lines, rest]


def _verdict(s: Serving, place: str) -> str:
    q, d = s.question, s.question.deployment
    each = f"{format_tokens(q.context)} each"
    most = max([*q.batches, s.wanted or 1])
    who = f"{most} users" if most > 1 else "1 user"
    if q.users is not None and q.think_s:
        who = f"{q.users} users who think {q.think_s:g} s are {s.wanted} at once (Little's law)"
    if s.fit == 0:
        return f"{d.model.name} with {each} does not fit {place}. {_remedy(s.fixes)}"
    if most > s.fit:
        waits = f"a request waits {_lasting(s.wait_s)} for room" if s.wait_s else "the others wait"
        return f"{who}; {place} has room for {s.fit} with {each}: {waits}. {_remedy(s.fixes)}"
    if most > 1:
        load = next(load for load in s.loads if load.users == most)
        then = f"each has {_short(load.tokens_per_s)} tok/s"
    else:
        load = s.loads[-1]
        shared = "" if load.users == 1 else f", {load.tokens_per_s.point:.3g} each for all {load.users}"
        then = f"{_short(s.loads[0].tokens_per_s)} tok/s for one user{shared}"
    spent = (
        ""
        if load.usd_per_mtok_out is None
        else f" A million tokens cost {_usd(s.usd_per_mtok_in)} USD in, {_usd(load.usd_per_mtok_out)} out."
    )
    fit = f"{who} of {each} fit" if most > 1 else f"{s.fit} users of {each} fit"
    if most == s.fit == 1:
        fit = f"1 user of {format_tokens(q.context)} fits"
    return f"{fit} {place}: first token after {format_seconds(s.ttft_s.point)}, then {then}.{spent}"


def _remedy(fixes: Sequence[Fix]) -> str:
    if not fixes:
        return "No card or number of GPUs here holds them: take a narrower dtype or shorter contexts."
    first, *others = [
        f"{fix.change} ({fix.fit} fit{'' if fix.usd_per_hour is None else f', {fix.usd_per_hour:.2f} USD/h'})" for fix in fixes
    ]
    rest = f"; else {', '.join(others[:2])}" if others else ""
    return f"Cheapest fix: {first}{rest}."


def _row(s: Serving, load: Load) -> list[str]:
    mark = " (full)" if load.users == s.fit else ""
    usd = "-" if load.usd_per_mtok_out is None else _usd(load.usd_per_mtok_out)
    speed, answer = _short(load.tokens_per_s), format_seconds(load.answer_s.point)
    return [f"{load.users}{mark}", speed, answer, f"{load.total_tokens_per_s:.4g}", usd]


def _lasting(seconds: float) -> str:
    return format_seconds(seconds) if seconds < 600 else f"{format_number(seconds / 60, 3)} min"


def _usd(usd: float | None) -> str:
    return f"{usd or 0.0:.2g}"


def _seconds(i: Interval) -> str:
    point, low, high = (format_seconds(each) for each in (i.point, i.low, i.high))
    return f"{point} [{low.split()[0] if low.split()[-1] == high.split()[-1] else low}-{high}]"


def _short(i: Interval) -> str:
    return f"{i.point:.3g} {format_range(i.low, i.high)}"
