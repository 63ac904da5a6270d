"""Workloads that options mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sim.errors import UsageError

if TYPE_CHECKING:
    from sim import Workload

TRACE_ONLY = (
    "limit",
    "resample",
    "rate_scale",
    "replay",
    "spread_arrivals",
    "prefix_block",
    "time_unit",
    "chars_per_token",
    "assume_prefix",
)
AGENTS_ONLY = ("agent_opening_len", "agent_opening_cv", "agent_edited_share", "agent_subagents", "agent_compact_at", "agent_kinds")
DRAWN_ONLY = (
    "random_input_len", "random_output_len", "random_length_cv", "random_range_ratio", "random_prefix_len", "num_prefixes", "turns",
)  # fmt: skip
_ARGUMENTS = {
    "random_input_len": "input_len",
    "random_output_len": "output_len",
    "random_length_cv": "length_cv",
    "random_range_ratio": "range_ratio",
    "random_prefix_len": "prefix_len",
    "num_prefixes": "prefixes",
    "think_time": "think_time_s",
    "agent_opening_len": "opening_len",
    "agent_opening_cv": "opening_cv",
    "agent_edited_share": "edited_share",
    "agent_subagents": "subagents",
    "agent_compact_at": "compact_at",
    "agent_kinds": "kinds",
    "replay": "replay",
    "spread_arrivals": "spread_arrivals_s",
    "trace_start": "start_s",
    "trace_duration": "duration_s",
}


def workload_of(options: Mapping[str, Any], most_tokens: int) -> Workload:
    """The workload that the options mean; `most_tokens` is the longest prompt and output of a call. UsageError when they contradict."""
    names = (*TRACE_ONLY, *DRAWN_ONLY, *_ARGUMENTS, "request_rate", "burstiness", "rate_curve", "max_concurrency")
    given = {name for name in names if options[name] is not None and options[name] is not False}
    arguments = {_ARGUMENTS.get(name, name): options[name] for name in given if name != "resample"} | {"seed": options["seed"]}
    if options["agent_sessions"] is None and (stray := sorted(given.intersection(AGENTS_ONLY))):
        raise UsageError(f"--workload-option {stray[0].replace('_', '-')} needs --agent-sessions")
    if options["trace"] is None:
        return _drawn(options, given, arguments | {"most_tokens": most_tokens})
    return _from_trace(options, given, arguments)


def _drawn(options: Mapping[str, Any], given: set[str], arguments: dict[str, Any]) -> Workload:
    from sim import Workload

    if stray := sorted(given.intersection((*TRACE_ONLY, "trace_start", "trace_duration"))):
        raise UsageError(f"--workload-option {stray[0].replace('_', '-')} needs a --trace")
    requests, sessions = options["num_prompts"], options["agent_sessions"]
    if sessions is None:
        if requests is None:
            raise UsageError("what to serve? give --trace FILE, or --num-prompts N or --agent-sessions N to draw requests")
        return Workload.drawn(requests, **arguments)
    if requests is not None:
        raise UsageError("give --num-prompts or --agent-sessions, not both")
    if given.intersection(("random_length_cv", "random_range_ratio")):
        raise UsageError("--random-length-cv and --random-range-ratio are not for agents: their lengths have variances of their own")
    if "num_prefixes" in given:
        raise UsageError("--workload-option num-prefixes is not for agents: all of a kind have one system prompt")
    return Workload.agents(sessions, **arguments)


def _from_trace(options: Mapping[str, Any], given: set[str], arguments: dict[str, Any]) -> Workload:
    from sim import Workload

    if options["agent_sessions"] is not None:
        raise UsageError("--agent-sessions draws requests of its own; a --trace has its own")
    if stray := sorted(given.intersection(DRAWN_ONLY)):
        raise UsageError(f"--{stray[0].replace('_', '-')} is for requests that are drawn; the trace has its own")
    rated = given.intersection(("request_rate", "rate_curve"))
    if options["resample"] and (options["num_prompts"] is None or not rated):
        raise UsageError("--workload-option resample needs --num-prompts and --request-rate or --rate-curve")
    if options["num_prompts"] is not None and not options["resample"]:
        raise UsageError("--num-prompts with a trace needs --workload-option resample; limit=N takes its first requests")
    if "burstiness" in given and not rated:
        raise UsageError("--burstiness needs --request-rate or --rate-curve")
    return Workload.from_trace(options["trace"], options["trace_format"], resample=options["num_prompts"], **arguments)
