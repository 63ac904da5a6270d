"""served: a real server under load. A closed-loop ladder, open-loop Poisson streams, multi-turn sessions, a KV-starved burst.

Protocol (served/2). One experiment is one batch of streams; a stream that fails voids its batch, and a void batch is kept and
marked, never averaged. A wave of the ladder sends N distinct prompts at once; its decode throughput is read in the true-decode
window. At the end the open loops are sent again, on the same server: the same arrivals and sizes, other tokens (nothing is cached), which
is what no model of the server could predict. Before the first experiment the server answers warm-up waves of every
prompt length to come, the longest of the open loops among them, which are not recorded. Version 1 sent nothing again and warmed up
with the medians.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hw.journal import Journal
from hw.pace import Budget, paced
from hw.serve import load, windows
from hw.serve.client import Served, Target
from hw.spread import summarize

PROTOCOL = "served/2"
AGAIN = " again"  # ends the name of an open loop sent a second time

REQUEST = {
    "experiment_index": ("index into the experiment dimension", "1"),
    "session": ("client or session within the experiment; -1 for none", "1"),
    "turn": ("request number within it", "1"),
    "arrival_s": ("when the client sent it, from the experiment's first send", "s"),
    "prompt_tokens": ("tokens of the prompt", "tokens"),
    "output_tokens": ("tokens received", "tokens"),
    "asked_tokens": ("tokens asked for", "tokens"),
    "cached_tokens": ("prompt tokens the server says it had cached; NaN if it says nothing, as vLLM does for none", "tokens"),
    "first_token_s": ("time to first token after arrival", "s"),
    "finish_s": ("end-to-end latency after arrival", "s"),
    "itl_median_s": ("median gap between tokens", "s"),
    "itl_max_s": ("longest gap between tokens", "s"),
    "ok": ("complete", "bool"),
    "error": ("what went wrong", ""),
}
EXPERIMENT = {
    "name": ("experiment", ""),
    "kind": ("ladder, closed, open, sessions or burst", ""),
    "n": ("streams at once (ladder, closed, sessions), requests (open, burst)", "1"),
    "rate_per_s": ("offered arrival rate of an open loop", "1/s"),
    "prompt_tokens_asked": ("prompt tokens, or their median", "tokens"),
    "output_tokens_asked": ("output tokens, or their median", "tokens"),
    "void": ("why the batch must not be used; empty if it may", ""),
    "requests": ("requests sent", "1"),
    "duration_s": ("first send to last token", "s"),
    "ttft_s_median": ("median time to first token", "s"),
    "ttft_s_p25": ("lower quartile", "s"),
    "ttft_s_p75": ("upper quartile", "s"),
    "window_tokens_per_s": ("throughput in the true-decode window", "tokens/s"),
    "window_step_s": ("mean time per token of a stream in the window", "s"),
    "window_s": ("length of the window", "s"),
    "eta": ("per-stream efficiency against the single stream of the same ladder", "1"),
}


@dataclass(frozen=True, slots=True)
class Experiment:
    """One batch of streams: a name, what it is, and the coroutine that sends it."""

    name: str
    kind: str
    send: Callable[[], Coroutine[Any, Any, list[Served]]]
    n: int
    prompt_tokens: int
    output_tokens: int
    rate_per_s: float = float("nan")
    load: tuple[list[float], list[tuple[int, int]]] | None = None  # an open loop's arrivals (s) and (prompt, output) sizes


# A laptop core takes milliseconds per decoded token and per prompt token alike: short prompts, outputs long enough to time.
CPU_PLAN = {"prompt_scale": 16, "output_scale": 4, "duration_s": 12.0}
GPU_PLAN = {"prompt_scale": 1, "output_scale": 1, "duration_s": 20.0}
AGAIN_PROMPTS = 5 * 10**9  # prompts of loops sent again begin here


def ladder(target: Target, prompts: load.Prompts, rungs: tuple[int, ...], prompt_tokens: int, output_tokens: int) -> list[Experiment]:
    """One wave per rung, distinct prompts across the whole ladder; lowest and highest rungs first, so that a cut one still spans."""
    order = sorted(rungs, key=lambda n: (n not in (min(rungs), max(rungs)), n))
    found = []
    for n in order:
        first = sum(rungs[: rungs.index(n)]) + 100_000 * prompt_tokens
        send = lambda n=n, first=first: load.wave(target, prompts, n, prompt_tokens, output_tokens, first)  # noqa: E731
        found.append(Experiment(f"ladder c{prompt_tokens} n{n}", "ladder", send, n, prompt_tokens, output_tokens))
    return found


def poisson(
    target: Target, prompts: load.Prompts, rate_per_s: float, duration_s: float, rng: np.random.Generator, *,
    prompt_median: int, output_median: int, prompt_max: int, output_max: int, first: int,
) -> Experiment:  # fmt: skip
    """An open loop of `rate_per_s` over about `duration_s`, lognormal sizes of shape 0.6."""
    count = max(4, round(rate_per_s * duration_s))
    arrivals = load.poisson_arrivals(rate_per_s, count, rng)
    sizes = load.lognormal_sizes(
        count, rng, prompt_median=prompt_median, output_median=output_median, sigma=0.6, prompt_max=prompt_max, output_max=output_max
    )
    return Experiment(
        f"open {rate_per_s:g}/s", "open", lambda: load.open_loop(target, prompts, arrivals, sizes, first), count,
        prompt_median, output_median, rate_per_s, (arrivals, sizes),
    )  # fmt: skip


def open_loops(
    target: Target,
    vocab: int,
    seed: int,
    rates: tuple[float, ...],
    *,
    prompt_scale: int,
    output_scale: int,
    duration_s: float,
    again: bool = False,
) -> list[Experiment]:
    """One Poisson stream per rate (requests/s), about `duration_s` each; the same seed and leading rates give the same loads. Those sent
    `again` have other prompts and another name.
    """
    prompts, rng = load.Prompts(vocab, seed), np.random.default_rng(seed + 10)
    sizes = {
        "prompt_median": max(16, 512 // prompt_scale),
        "prompt_max": max(16, 4096 // prompt_scale),
        "output_median": max(16, 128 // output_scale),
        "output_max": max(16, 512 // output_scale),
    }
    first = AGAIN_PROMPTS if again else 10**9
    loops = [poisson(target, prompts, rate, duration_s, rng, **sizes, first=first + 10**6 * index) for index, rate in enumerate(rates)]
    return [replace(loop, name=loop.name + AGAIN) for loop in loops] if again else loops


def plan(
    target: Target, vocab: int, seed: int, rates: tuple[float, ...], rungs: tuple[int, ...], sizing: dict[str, Any]
) -> list[Experiment]:
    """The standard plan: ladder, open loops, sessions, closed loop, the open loops again. `sizing` is GPU_PLAN or CPU_PLAN."""
    prompts = load.Prompts(vocab, seed)
    prompt = lambda tokens: max(16, tokens // sizing["prompt_scale"])  # noqa: E731
    output = lambda tokens: max(16, tokens // sizing["output_scale"])  # noqa: E731
    found = ladder(target, prompts, rungs, prompt(2048), output(128))
    found += open_loops(target, vocab, seed, rates, **sizing)
    talk = lambda: load.sessions(  # noqa: E731
        target, prompts, 8, 4, first_tokens=prompt(1024), turn_tokens=prompt(128), output_tokens=output(64), think_s=0.2, first=2 * 10**9
    )
    found.append(Experiment("sessions 8x4", "sessions", talk, 8, prompt(1024), output(64)))
    loop = lambda: load.closed_loop(target, prompts, 16, 4, prompt(1024), output(96), 3 * 10**9)  # noqa: E731
    found.append(Experiment("closed 16x4", "closed", loop, 16, prompt(1024), output(96)))
    return found + open_loops(target, vocab, seed, rates, **sizing, again=True)


def burst(target: Target, vocab: int, seed: int, count: int, prompt_tokens: int, output_tokens: int) -> Experiment:
    """`count` requests at once, sized by the caller to need more KV than the server has: it must queue or preempt."""
    prompts = load.Prompts(vocab, seed)
    send = lambda: load.wave(target, prompts, count, prompt_tokens, output_tokens, 4 * 10**9)  # noqa: E731
    return Experiment("burst", "burst", send, count, prompt_tokens, output_tokens)


def measure(experiments: list[Experiment], target: Target, vocab: int, journal: Journal, budget: Budget, name: str) -> dict[str, Any]:
    """Run the experiments into the journal until done or out of budget. Returns attributes."""
    warm = load.Prompts(vocab, 99)
    longest = {max(prompt for prompt, _ in e.load[1]) for e in experiments if e.load}
    for index, tokens in enumerate(sorted({64, *longest, *(e.prompt_tokens for e in experiments)})):
        asyncio.run(load.wave(target, warm, 4, tokens, 8, first=100 * index))
    waiting = [e for e in experiments if e.name not in journal]
    for experiment in paced(waiting, budget, name, reserve_s=2.0):
        records = asyncio.run(experiment.send())
        journal.add(experiment.name, **summary(experiment, records))
    return {"finished": int(all(e.name in journal for e in experiments))}


def summary(experiment: Experiment, records: list[Served]) -> dict[str, Any]:
    """One experiment as journal content: its row, its request rows and its token times (seconds from the first send)."""
    start = min(r.sent_s for r in records)
    last = max((r.finish_s for r in records if r.finish_s is not None), default=start)
    row: dict[str, Any] = {
        "name": experiment.name,
        "kind": experiment.kind,
        "n": experiment.n,
        "rate_per_s": experiment.rate_per_s if np.isfinite(experiment.rate_per_s) else None,
        "prompt_tokens_asked": experiment.prompt_tokens,
        "output_tokens_asked": experiment.output_tokens,
        "void": windows.void_reason(records),
        "requests": len(records),
        "duration_s": last - start,
        **summarize([r.token_s[0] - r.sent_s for r in records if r.token_s], "ttft_s"),
    }
    if experiment.kind == "ladder":
        window = windows.decode_window(records)
        if isinstance(window, windows.Window):
            row |= {
                "window_tokens_per_s": window.tokens_per_s,
                "window_step_s": window.step_s,
                "window_s": window.close_s - window.open_s,
            }
        else:
            row["void"] = row["void"] or window
    tokens = [[round(t - start, 6) for t in r.token_s] for r in records]
    return {"row": row, "requests": [_request(r, start) for r in records], "tokens": tokens}


def _request(record: Served, start: float) -> dict[str, Any]:
    gaps = np.diff(record.token_s)
    return {
        "session": record.session,
        "turn": record.turn,
        "arrival_s": record.sent_s - start,
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": len(record.token_s),
        "asked_tokens": record.asked_tokens,
        "cached_tokens": None if record.cached_tokens is None else float(record.cached_tokens),
        "first_token_s": None if record.first_token_s is None else record.first_token_s - record.sent_s,
        "finish_s": None if record.finish_s is None else record.finish_s - record.sent_s,
        "itl_median_s": float(np.median(gaps)) if len(gaps) else None,
        "itl_max_s": float(gaps.max()) if len(gaps) else None,
        "ok": record.ok,
        "error": record.error,
    }


def dataset(records: list[dict[str, Any]], attrs: dict[str, Any]) -> Any:
    """The journal as a Dataset with dims `experiment`, `request` and `token`.

    Tokens lie flat: the first `output_tokens[0]` belong to request 0, and so on.
    """
    import xarray as xr

    from hw.artifact import SCHEMA, table

    rows = [dict(r["row"]) for r in records]
    _add_efficiency(rows)
    requests = [{"experiment_index": i, **q} for i, r in enumerate(records) for q in r["requests"]]
    times = [t for r in records for t in r["tokens"]]
    variables = table("request", requests, REQUEST) | table("experiment", rows, EXPERIMENT)
    variables["token_time_s"] = (
        "token",
        np.array([t for one in times for t in one], dtype=np.float32),
        {"long_name": "receive time from the experiment's first send, requests in order, output_tokens of each", "units": "s"},
    )
    knees = {f"served_knee_c{c}": k for c, k in _knees(rows).items()}
    derived = {"protocol": PROTOCOL, "void_batches": sum(bool(r["void"]) for r in rows), **knees}
    return xr.Dataset(variables, attrs={"schema": SCHEMA, "suite": "served", **derived, **attrs})


def _ladders(rows: list[dict[str, Any]]) -> dict[int, dict[int, float]]:
    """{prompt tokens: {n: window throughput}} of the usable rungs."""
    found: dict[int, dict[int, float]] = {}
    for row in rows:
        if row["kind"] == "ladder" and not row["void"]:
            found.setdefault(row["prompt_tokens_asked"], {})[row["n"]] = row["window_tokens_per_s"]
    return found


def _add_efficiency(rows: list[dict[str, Any]]) -> None:
    for context, rungs in _ladders(rows).items():
        eta = windows.efficiency(rungs) if 1 in rungs else {}
        for row in rows:
            if row["kind"] == "ladder" and row["prompt_tokens_asked"] == context and row["n"] in eta:
                row["eta"] = eta[row["n"]]


def _knees(rows: list[dict[str, Any]]) -> dict[int, str]:
    """The served knee of each ladder as text: a rung, or "> rung" when it was not crossed."""
    found = {}
    for context, rungs in _ladders(rows).items():
        if 1 in rungs:
            n, censored = windows.knee(windows.efficiency(rungs))
            found[context] = f"> {n:g}" if censored else f"{n:g}"
    return found
