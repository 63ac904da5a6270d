"""Text of `simctl explain`: a table of stages, one of terms, and a few sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sim.results.explain import LATENCIES, NO_ITERATION, RESPONSE, Beside, DelayPart, Explanation, ms
from sim.units import format_seconds
from simctl.text.layout import aligned, fill

STAGES = {
    "router": "router",
    "api_server": "API server",
    "kv": "waiting for KV and room for it",
    "moved": "on the way to another replica",
    "queue": "queue of the engine",
    "prefill": "prefill",
    "stalled": "held up between iterations of its own",
    "lost": "computed, then lost",
    "preempted": "preempted, waiting",
    "decode": "decode",
    "recompute": "computed again",
    RESPONSE: "the token's way to its client",
}
WHY = {
    "own_request": "for the request itself",
    "turns": "for the turns of others",
    "under_way": "for the iteration under way",
    "budget": "for want of token budget",
    "slots": "for want of a sequence slot",
    "kv_blocks": "for want of KV blocks",
    "not_said": "the engine does not say for what",
}
WHOSE = {
    "own": "its own prefill",
    "others": "prefill of others",
    "decode_kv": "attention of decodes",
    "decodes": "decodes, the rest",
    NO_ITERATION: "no iteration ran",
}
WAITS = ("queue", "stalled", "preempted")
TOTALS = dict(zip(LATENCIES, ("time to first token", "end-to-end latency"), strict=True))
SMALL = 5e-4  # share of a latency from which a term is worth a line
NAMED = 3  # other requests that are named
WORTH = 0.02  # share of a latency that is worth a sentence


def one_request(e: Explanation, attrs: Mapping[str, Any], by: str | None = None) -> list[str]:
    """The whole answer for one request, or that of its TTFT or its E2EL alone; `attrs` are the provenance of its run."""
    before, after = _phases(e, by)
    lines = _heading(e)
    if e.ttft and by != "e2el":
        lines += ["", *_stages(e.ttft, TOTALS["ttft"])]
    if by == "e2el" or not e.ttft:
        lines += ["", *_stages(e.e2el, TOTALS["e2el"] if e.finished else "until it came to nothing")]
    elif by is None:
        first = DelayPart("first", _sum(part.ticks for part in e.ttft[:-1]))
        lines += ["", *_stages([first, *after], TOTALS["e2el"] if e.finished else "until it came to nothing")]
    return [*lines, "", *_terms(before, after), "", *(fill(sentence) for sentence in sentences(e, attrs, by))]


def _phases(e: Explanation, by: str | None) -> tuple[Sequence[DelayPart], Sequence[DelayPart]]:
    """The parts up to the first token, or all where there was none, and those after it, unless only TTFT is asked for."""
    return e.ttft or e.e2el, e.e2el[len(e.ttft) - 1 :] if e.ttft and by != "ttft" else ()


def several(found: Sequence[Explanation], by: str) -> list[str]:
    """A line per request, the slowest first."""
    head = ("request", "replica", "prompt", "cached", f"{by.upper()} ms", "queue", "own", "others", "decodes")
    rows = []
    for e in found:
        parts = e.ttft if by == LATENCIES[0] else e.e2el
        whose = [_sum(part.whose.get(name, 0) for part in parts) for name in WHOSE]
        queue = _sum(part.ticks for part in parts if part.stage == "queue")
        rows.append(
            (e.request_id, str(e.replica), f"{e.prompt_tokens:,}", f"{e.cached_tokens:,}",
             *(f"{ms(ticks):,.0f}" for ticks in (e.ticks(by), queue, whose[0], whose[1], whose[2] + whose[3])))
        )  # fmt: skip
    away = sum(e.earlier is not None and e.earlier.replica != e.replica for e in found)
    notes = ["queue: in the engine, before its first iteration. own, others: time for its own prefill and for that of others, in the "
             "queue and after it; decodes: for those that ran beside."]  # fmt: skip
    if away:
        notes.append(f"{away} of {len(found)} ran on another replica than the latest turn of their session.")
    return [*aligned(head, rows), "", *(fill(note) for note in notes)]


def _heading(e: Explanation) -> list[str]:
    turn = f"turn {e.turn} of session {e.session_id}, " if e.session_id is not None else ""
    way = f" by {e.decision}" if e.decision else ""
    ending = "" if e.finished else "; it did not finish"
    cached = f"{e.cached_tokens:,} of them cached" if e.cached_tokens else "none of them cached"
    lost = f", {e.preemptions} preemption{'s' if e.preemptions > 1 else ''}" if e.preemptions else ""
    return [
        fill(f"request {e.request_id}: {turn}on replica {e.replica}{way}, sent at {e.arrival_s:,.3f} s{ending}"),
        fill(f"prompt of {e.prompt_tokens:,} tokens, {cached}; {e.generated_tokens:,} tokens generated{lost}"),
    ]


def _stages(parts: Sequence[DelayPart], total: str) -> list[str]:
    whole = sum(part.ticks for part in parts) or 1

    def row(label: str, ticks: int, iterations: int = 0) -> tuple[str, str, str, str]:
        return label, f"{iterations:,}" if iterations else "", f"{ms(ticks):,.1f}", f"{100 * ticks / whole:.1f} %"

    rows = []
    for part in parts:
        label = "until its first token was sampled" if part.stage == "first" else STAGES[part.stage]
        rows.append(row(label, part.ticks, part.iterations))
        rows += [row(f"  {label}", part.why[name]) for name, label in WHY.items() if name in part.why]
        meanwhile = "meanwhile: " if part.stage in WAITS else ""
        rows += [row(f"  {meanwhile}{label}", part.whose[name]) for name, label in WHOSE.items() if name in part.whose]
    return aligned(("stage", "iterations", "ms", "share"), [*rows, row(f"= {total}", sum(part.ticks for part in parts))])


def _terms(before: Sequence[DelayPart], after: Sequence[DelayPart]) -> list[str]:
    """Milliseconds by term, of the queue, of prefill and of decode with what held them up."""
    queue, prefill = ([part for part in before if (part.stage == "queue") == queues] for queues in (True, False))
    groups = {"queue": queue, "prefill": prefill, "decode": after}
    names = dict.fromkeys(name for parts in groups.values() for part in parts for name in part.terms)
    table = {name: {title: _sum(part.terms.get(name, 0) for part in parts) for title, parts in groups.items()} for name in names}
    titles = [title for title in groups if any(row[title] for row in table.values())]
    least = SMALL * _sum(part.ticks for part in (*before, *after))
    order = sorted((name for name in table if sum(table[name].values()) > least), key=lambda name: -sum(table[name].values()))
    rows = [(name, *(f"{ms(table[name][title]):,.1f}" for title in titles)) for name in order]
    return aligned(("by term of the step time, ms", *titles), rows)


def sentences(e: Explanation, attrs: Mapping[str, Any], by: str | None = None) -> list[str]:
    """Sentences on the causes: prefill of others, preemption, and how much of its prompt was cached, or was elsewhere."""
    before, after = _phases(e, by)
    behind = _behind("TTFT" if e.ttft else "time", before, {each: each.ttft_s for each in e.beside})
    later = _behind("decoding", after, {each: each.decode_s for each in e.beside})
    return [*behind, *later, *_set_back([*before, *after]), _cache(e, attrs)]


def _behind(of: str, parts: Sequence[DelayPart], shares: Mapping[Beside, float]) -> list[str]:
    """Share of the parts that went to the prefill of others, and whose."""
    total, whole = _sum(part.whose.get("others", 0) for part in parts), _sum(part.ticks for part in parts)
    others = sorted((each for each in shares if shares[each] > 0), key=lambda each: -shares[each])
    if not others or total <= WORTH * whole:
        return []
    text = f"{_seconds(total)} of its {_seconds(whole)} {of} it waited for the prefill of"
    if len(others) == 1:
        return [f"{text} {others[0].request_id} ({others[0].tokens:,} tokens)."]
    most = ", ".join(f"{each.request_id} ({format_seconds(shares[each])}, {each.tokens:,} tokens)" for each in others[:NAMED])
    return [f"{text} {len(others)} other requests{', first of all' if len(others) > NAMED else ''}: {most}."]


def _seconds(ticks: int) -> str:
    return format_seconds(1e-3 * ms(ticks))


def _set_back(parts: Sequence[DelayPart]) -> list[str]:
    waited, twice = (_sum(part.ticks for part in parts if part.stage in stages) for stages in (("preempted",), ("lost", "recompute")))
    return [f"Preemption cost it {_seconds(waited)} of waiting and {_seconds(twice)} of computing twice."] if waited + twice else []


def _cache(e: Explanation, attrs: Mapping[str, Any]) -> str:
    if not any(part.stage in ("prefill", "lost") for part in e.e2el):
        return "It was never scheduled."
    if not int(attrs.get("enable_prefix_caching", 1)):
        return "Prefix caching was off."
    found = f"Warm: {e.cached_tokens:,} of {e.prompt_tokens:,} prompt tokens were" if e.cached_tokens else "Cold: nothing of its prompt was"
    found += " cached."
    block = int(attrs.get("block_size", 1))
    if e.earlier is None or e.earlier.tokens // block * block <= e.cached_tokens:
        return found
    left = f"left {'' if e.earlier.known else 'up to '}{e.earlier.tokens:,} tokens of this prompt"
    if e.earlier.replica != e.replica:
        return f"{found} Its session's turn {e.earlier.turn} ran on replica {e.earlier.replica} and {left} there, unless evicted since."
    gone = "evicted since" if e.earlier.known else "evicted since, or not the same tokens"
    return f"{found} Its session's turn {e.earlier.turn} ran on this replica and {left}: {gone}."


def _sum(ticks: Iterable[int]) -> int:
    return sum(ticks)
