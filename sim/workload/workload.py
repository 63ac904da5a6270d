"""Workloads: what is asked of a deployment, drawn or replayed, and how many clients send it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sim.errors import UsageError
from sim.shown import Figures, Shown
from sim.workload.agent_kinds import read_kinds
from sim.workload.agent_sessions import SESSIONS_PER_S, AgentMixture, AgentSessions, draw_sessions
from sim.workload.arrivals import jitter_within_buckets, with_arrivals
from sim.workload.formats import format_of, load_trace
from sim.workload.loader_options import LoadOptions
from sim.workload.rate_curve import RateCurve, load_curve
from sim.workload.redraw import Redraw
from sim.workload.synthetic import Synthetic, draw, resampled, with_think_time
from sim.workload.trace import Trace, TraceBuilder, assuming_prefix

FITTED = AgentSessions()
SAID_IF_GIVEN = ("prefix_block", "time_unit", "chars_per_token", "assume_prefix")  # of a trace: how it was read


@dataclass(frozen=True, slots=True, repr=False)
class Workload(Shown):
    """Requests in order of arrival. `redraw(i)` is another draw of the same workload, None for a trace, which happened once.

    `max_concurrency` clients at most have a request in flight (None: no limit). `origin` is what made it, as plain attributes.
    """

    trace: Trace
    max_concurrency: int | None = None
    redraw: Redraw | None = None
    origin: Mapping[str, Any] = field(default_factory=dict)

    def shown(self) -> tuple[str, Figures]:
        """Title and figures."""
        title, figures = self.trace.shown()
        clients = [] if self.max_concurrency is None else [("clients", str(self.max_concurrency))]
        return title, [*figures, *clients, *([("trace", str(self.origin["trace"]))] if "trace" in self.origin else [])]

    def __post_init__(self) -> None:
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise UsageError(f"clients in flight must be at least 1, got {self.max_concurrency}")

    @classmethod
    def drawn(
        cls,
        num_prompts: int,
        *,
        input_len: int = 1024,
        output_len: int = 128,
        length_cv: float = 0.0,
        range_ratio: float = 0.0,
        prefix_len: int = 0,
        prefixes: int = 1,
        turns: int = 1,
        think_time_s: float = 0.0,
        request_rate: float | None = None,
        burstiness: float = 1.0,
        rate_curve: RateCurve | str | Path | None = None,
        max_concurrency: int | None = None,
        most_tokens: int | None = None,
        seed: int = 0,
    ) -> Workload:
        """Requests drawn from distributions (sim.workload.synthetic.Synthetic); lengths are means, in tokens.

        They come all at once, at `request_rate`, or along `rate_curve` (sim.workload.rate_curve: a curve, a name or a file), scaled to a
        mean of `request_rate` if both are given. Raises UsageError.
        """
        rate = _rate(request_rate, rate_curve, math.inf)
        spec = Synthetic(
            num_prompts, input_len, output_len, length_cv, prefix_len, turns, think_time_s, rate, burstiness, most_tokens, range_ratio,
            prefixes,
        )  # fmt: skip
        origin = {
            "num_prompts": num_prompts,
            **_rate_origin(rate),
            "burstiness": burstiness,
            "random_input_len": input_len,
            "random_output_len": output_len,
            "random_length_cv": length_cv,
            "random_range_ratio": range_ratio,
            "random_prefix_len": prefix_len,
            **({"num_prefixes": prefixes} if prefixes > 1 else {}),
            "turns": turns,
            "think_time": think_time_s,
        }
        return cls(
            draw(spec, np.random.default_rng(seed)),
            max_concurrency,
            Redraw(draw, spec, seed),
            origin,
        )

    @classmethod
    def agents(
        cls,
        num_sessions: int = FITTED.num_sessions,
        *,
        turns: float = FITTED.turns,
        think_time_s: float = FITTED.think_s,
        prefix_len: int = FITTED.prefix_tokens,
        opening_len: int = FITTED.opening_tokens,
        input_len: int = FITTED.input_tokens,
        output_len: int = FITTED.output_tokens,
        edited_share: float = FITTED.edited_share,
        opening_cv: float | None = None,
        subagents: float = FITTED.subagents,
        compact_at: int | None = None,
        kinds: Path | str | Sequence[Mapping[str, Any]] | None = None,
        request_rate: float | None = None,
        burstiness: float = FITTED.burstiness,
        rate_curve: RateCurve | str | Path | None = None,
        max_concurrency: int | None = None,
        most_tokens: int | None = None,
        seed: int = 0,
    ) -> Workload:
        """Sessions of agents (sim.workload.agent_sessions), which says what the defaults were fitted to; lengths are means, in tokens.

        Sessions start at `request_rate` (None: as fitted), or along `rate_curve` as in `drawn`. Contexts end at `most_tokens`, or at the
        200,000 of the fit where that is less and nothing is compacted. `kinds` (sim.workload.agent_kinds) are several kinds of agents, the
        other arguments what they leave out; their contexts end at `most_tokens`. Raises UsageError.
        """
        rate = _rate(request_rate, rate_curve, SESSIONS_PER_S)
        most = most_tokens or FITTED.most_tokens
        one = AgentSessions(
            num_sessions, turns, think_time_s, prefix_len, opening_len, input_len, output_len, edited_share, rate, burstiness,
            min(most, FITTED.most_tokens) if compact_at is None else most,
            None, opening_cv, subagents, compact_at,
        )  # fmt: skip
        spec: AgentSessions | AgentMixture = one
        if kinds is not None:
            several = read_kinds(Path(kinds) if isinstance(kinds, str) else kinds, replace(one, most_tokens=most))
            spec = AgentMixture(num_sessions, several, rate, burstiness)
        trace = draw_sessions(spec, np.random.default_rng(seed))
        return cls(trace, max_concurrency, Redraw(draw_sessions, spec, seed), _agents_origin(one, spec))

    @classmethod
    def from_arrays(
        cls,
        arrival_s: Sequence[float],
        prompt_tokens: Sequence[int],
        output_tokens: Sequence[int],
        *,
        request_ids: Sequence[str] | None = None,
        max_concurrency: int | None = None,
    ) -> Workload:
        """A trace in memory: arrivals in seconds, ascending, and tokens of prompts and outputs, each of shape [requests].

        Raises UsageError naming the request that no engine could be asked.
        """
        columns = (arrival_s, prompt_tokens, output_tokens, *([] if request_ids is None else [request_ids]))
        if len({len(each) for each in columns}) > 1:
            raise UsageError(f"arrays of a trace have one length, not {', '.join(str(len(each)) for each in columns)}")
        builder = TraceBuilder("arrays")
        for i, (at, prompt, output) in enumerate(zip(arrival_s, prompt_tokens, output_tokens, strict=True)):
            name = None if request_ids is None else str(request_ids[i])
            builder.add(f"request {i}", arrival_s=float(at), prompt_tokens=int(prompt), output_tokens=int(output), request_id=name)
        trace = builder.build()
        return cls(trace, max_concurrency, None, {"trace": "arrays", "num_prompts": len(trace)})

    @classmethod
    def from_trace(
        cls,
        path: str | Path,
        trace_format: str | None = None,
        *,
        limit: int | None = None,
        resample: int | None = None,
        replay: str | None = None,
        rate_scale: float = 1.0,
        spread_arrivals_s: float = 0.0,
        request_rate: float | None = None,
        burstiness: float = 1.0,
        rate_curve: RateCurve | str | Path | None = None,
        think_time_s: float = 0.0,
        start_s: float = 0.0,
        duration_s: float = 3600.0,
        prefix_block: int | None = None,
        time_unit: str | None = None,
        chars_per_token: float | None = None,
        assume_prefix: int = 0,
        max_concurrency: int | None = None,
        seed: int = 0,
    ) -> Workload:
        """Requests of a trace file (sim.workload.formats; unasked, in the format that its content shows), its first `limit`; at its own
        times, at `request_rate` or by `rate_curve`.

        `replay` is how sessions are sent (Trace.replayed); `resample` draws so many requests with the trace's lengths instead.
        UsageError names what is wrong, OSError where the file cannot be read.
        """
        path, rng = Path(path), np.random.default_rng(seed)
        options = LoadOptions(
            seed=seed, start_s=start_s, duration_s=duration_s, prefix_block=prefix_block, time_unit=time_unit,
            chars_per_token=chars_per_token, assume_prefix=assume_prefix,
        )  # fmt: skip
        trace_format = trace_format or format_of(path)
        trace = assuming_prefix(load_trace(path, trace_format, options), assume_prefix).replayed(replay).rate_scaled(rate_scale)
        trace = trace if limit is None else trace.head(limit)
        trace = trace if resample is None else resampled(trace, resample, rng)
        trace = jitter_within_buckets(trace, spread_arrivals_s, rng) if spread_arrivals_s else trace
        rate = None if request_rate is None and rate_curve is None else _rate(request_rate, rate_curve, math.inf)
        if rate is None and burstiness != 1.0:
            raise UsageError("burstiness needs a request rate or a rate curve")
        trace = trace if rate is None else with_arrivals(trace, rate, burstiness, rng)
        origin = _trace_origin(path, trace_format, options) | {
            "rate_scale": rate_scale,
            "spread_arrivals": spread_arrivals_s,
            "burstiness": burstiness,
            "think_time": think_time_s,
            **{name: value for name, value in (("limit", limit), ("num_prompts", resample), ("replay", replay)) if value},
            **({} if rate is None else _rate_origin(rate)),
        }
        return cls(with_think_time(trace, think_time_s, rng), max_concurrency, None, origin)


def _agents_origin(one: AgentSessions, spec: AgentSessions | AgentMixture) -> dict[str, Any]:
    return {
        **({} if one.opening_cv is None else {"agent_opening_cv": one.opening_cv}),
        **({"agent_subagents": one.subagents} if one.subagents else {}),
        **({} if one.compact_at is None else {"agent_compact_at": one.compact_at}),
        **({"agent_kinds": _kinds_digest(spec)} if isinstance(spec, AgentMixture) else {}),
        "agent_sessions": one.num_sessions,
        **_rate_origin(one.rate_per_s),
        "burstiness": one.burstiness,
        "agent_opening_len": one.opening_tokens,
        "agent_edited_share": one.edited_share,
        "random_input_len": one.input_tokens,
        "random_output_len": one.output_tokens,
        "random_prefix_len": one.prefix_tokens,
        "turns": one.turns,
        "think_time": one.think_s,
    }


def _kinds_digest(spec: AgentSessions | AgentMixture) -> str:
    """sha256 of what kinds of agents there are."""
    return hashlib.sha256(repr(spec).encode()).hexdigest()


def _rate(request_rate: float | None, rate_curve: RateCurve | str | Path | None, default_per_s: float) -> float | RateCurve:
    """The rate to draw arrivals at: a given one, which a curve is scaled to, or the curve's own, or the default."""
    if rate_curve is None:
        return default_per_s if request_rate is None else request_rate
    curve = rate_curve if isinstance(rate_curve, RateCurve) else load_curve(rate_curve)
    return curve if request_rate is None else curve.scaled_to(request_rate)


def _trace_origin(path: Path, trace_format: str, options: LoadOptions) -> dict[str, Any]:
    """Which file it was, and how it was read."""
    return {
        "trace": path.name.encode("utf-8", "replace").decode(),  # its place on this machine is nobody's business
        "trace_sha256": _digest(path),
        "trace_format": trace_format,
        "trace_start": options.start_s,
        "trace_duration": options.duration_s,
        **{name: value for name in SAID_IF_GIVEN if (value := getattr(options, name))},
    }


def _rate_origin(rate: float | RateCurve) -> dict[str, Any]:
    if isinstance(rate, RateCurve):
        return {"rate_curve": rate.name, "rate_curve_sha256": rate.digest, "request_rate": rate.mean_per_s}
    return {"request_rate": rate} if math.isfinite(rate) else {}


def _digest(path: Path) -> str:
    total = hashlib.sha256()
    for each in sorted(path.glob("chunk-*")) if path.is_dir() else [path]:
        with each.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()
