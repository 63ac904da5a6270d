"""served: a real server under load. A closed-loop ladder, open-loop Poisson streams, multi-turn sessions, a KV-starved burst.

Protocol (served/5). One experiment is one batch of streams; a stream that fails voids its batch, and a void batch is kept and
marked, never averaged. A wave of the ladder sends N distinct prompts at once; its decode throughput is read in the true-decode
window. At the end the open loops are sent again, on the same server, and sessions and the closed loop three times more
(hw.suites.served_plan). Before the first experiment the server answers warm-up waves of every prompt length to come, the longest of the
open loops among them, which are not recorded. While an experiment runs, the clock and the power of a GPU of this machine are read beside it
(hw.clocks), and a server of our own can be told to write down its iterations (hw.serve.iterations). Version 4 did not say when an
experiment began, version 3 read no clocks, version 2 sent only the open loops again, version 1 nothing; it warmed up with the medians.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from typing import Any

import numpy as np

from hw.clocks import COLUMNS, clocks
from hw.clocks import summary as of_clocks
from hw.journal import Journal
from hw.pace import Budget, paced
from hw.serve import load, windows
from hw.serve.client import Served, Target
from hw.spread import summarize
from hw.suites.served_plan import Experiment

PROTOCOL = "served/5"

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
    "began_unix_s": ("this machine's clock before its first request was sent", "s"),
    "duration_s": ("first send to last token", "s"),
    "ttft_s_median": ("median time to first token", "s"),
    "ttft_s_p25": ("lower quartile", "s"),
    "ttft_s_p75": ("upper quartile", "s"),
    "window_tokens_per_s": ("throughput in the true-decode window", "tokens/s"),
    "window_step_s": ("mean time per token of a stream in the window", "s"),
    "window_s": ("length of the window", "s"),
    "eta": ("per-stream efficiency against the single stream of the same ladder", "1"),
    **COLUMNS,
}


def measure(
    experiments: list[Experiment], target: Target, vocab: int, journal: Journal, budget: Budget, name: str, *, local: bool
) -> dict[str, Any]:
    """Run the experiments into the journal until done or out of budget. Returns attributes. Clocks are read of a `local` server only: of
    one elsewhere, this machine's GPU says nothing.
    """
    warm = load.Prompts(vocab, 99)
    longest = {max(prompt for prompt, _ in e.load[1]) for e in experiments if e.load}
    for index, tokens in enumerate(sorted({64, *longest, *(e.prompt_tokens for e in experiments)})):
        asyncio.run(load.wave(target, warm, 4, tokens, 8, first=100 * index))
    waiting = [e for e in experiments if e.name not in journal]
    for experiment in paced(waiting, budget, name, reserve_s=2.0):
        began_s = time.time()
        with clocks() if local else nullcontext([]) as readings:
            records = asyncio.run(experiment.send())
        found = summary(experiment, records)
        journal.add(experiment.name, **(found | {"row": found["row"] | {"began_unix_s": began_s} | of_clocks(readings)}))
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
