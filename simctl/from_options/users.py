"""Users who think between requests, as the load that they are: Little's law.

N users who think Z seconds and have an answer after R send N / (Z + R) requests a second. R is the answer of an idle server, of the fastest
deployment in question: a busy one is asked less, so that the load is not understated. Users who do not think are a closed loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from sim.errors import UsageError

if TYPE_CHECKING:
    from sim import Deployment
    from sim.rates.source import RateSource

REQUESTS = 1000  # to draw, where nothing is said
INSTEAD = ("request_rate", "max_concurrency", "rate_curve", "day", "trace", "agent_sessions")
MEDIANS = 20  # draws that are loaded beside the medians
INPUT_LEN, OUTPUT_LEN = 1024, 128  # those of Workload.drawn


def with_users(options: Mapping[str, Any], deployments: Iterable[Deployment], rates: RateSource) -> Mapping[str, Any]:
    """The options with --users as a request rate, or as most requests in flight; as they are without it. UsageError where both are said."""
    users, think_s = options["users"], options["think_time"]
    if users is None:
        return options
    if stray := next((name for name in INSTEAD if options.get(name) is not None), None):
        raise UsageError(f"--users says how many ask how often: leave out --{stray.replace('_', '-')}")
    if (options["turns"] or 1) > 1:
        raise UsageError("--users ask one thing at a time: leave out --turns, or give --request-rate of sessions")
    counted = {**options, "users": None, "think_time": None, "num_prompts": options["num_prompts"] or REQUESTS}
    if not think_s:
        return {**counted, "max_concurrency": users}
    prompt = (options["random_input_len"] or INPUT_LEN) + (options["random_prefix_len"] or 0)
    answer_s = min(answer_alone_s(d, prompt, options["random_output_len"] or OUTPUT_LEN, rates) for d in deployments)
    rate = users / (think_s + answer_s)
    click.echo(f"{users} users who think {think_s:g} s and wait {answer_s:.3g} s: {rate:.4g} requests/s (Little's law)", err=True)
    return {**counted, "request_rate": rate}


def answer_alone_s(d: Deployment, prompt: int, output: int, rates: RateSource) -> float:
    """Seconds until an idle server has answered a request."""
    from sim.closed_form.serving_at_context import Times

    return Times.of(d, prompt, output, *rates.of(d, MEDIANS)).answer_s(1)
