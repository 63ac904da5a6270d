"""The workload of a simulate command: options, and the trace they mean."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from sim.errors import UsageError
from sim.workload.formats import FORMATS

_DRAWN = ("random_input_len", "random_output_len", "random_length_cv", "random_prefix_len", "turns")


def workload_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say what is asked of the engine, and when."""
    for option in reversed(
        [
            click.option("--trace", type=click.Path(exists=True, path_type=Path), help="Trace file, or ServeGen's folder."),
            click.option(
                "--trace-format",
                type=click.Choice(list(FORMATS)),
                metavar="FORMAT",
                default="jsonl",
                show_default=True,
                help=f"One of {', '.join(FORMATS)}.",
            ),
            click.option("--limit", type=click.IntRange(1), metavar="N", help="Only the trace's first N requests."),
            click.option("--rate-scale", type=float, default=1.0, show_default=True, help="Let the trace arrive this many times as fast."),
            click.option(
                "--spread-arrivals",
                type=float,
                default=0.0,
                show_default=True,
                help="Put arrivals off by up to so many seconds, at random (Mooncake: 3).",
            ),
            click.option("--trace-start", type=float, default=0.0, show_default=True, help="ServeGen: draw from this second on."),
            click.option("--trace-duration", type=float, default=3600.0, show_default=True, help="ServeGen: draw this many seconds."),
            click.option("--num-prompts", type=click.IntRange(1, 10_000_000), help="Requests to draw, without a trace or with --resample."),
            click.option("--resample", is_flag=True, help="Draw --num-prompts requests with the trace's lengths."),
            click.option("--request-rate", type=float, help="Requests per second, instead of the trace's times; inf: all at once."),
            click.option("--burstiness", type=float, default=1.0, show_default=True, help="1: Poisson; less: bursts; inf: constant gaps."),
            click.option("--max-concurrency", type=click.IntRange(1), help="Most requests in flight: a closed loop of clients."),
            click.option("--random-input-len", type=click.IntRange(1), default=1024, show_default=True, help="Mean new prompt tokens."),
            click.option("--random-output-len", type=click.IntRange(1), default=128, show_default=True, help="Mean output tokens."),
            click.option(
                "--random-length-cv", type=float, default=0.0, show_default=True, help="Log-normal lengths with this CV; 0: fixed."
            ),
            click.option("--random-prefix-len", type=click.IntRange(0), default=0, show_default=True, help="System prompt shared by all."),
            click.option("--turns", type=click.IntRange(1), default=1, show_default=True, help="Requests per session; the context grows."),
            click.option("--think-time", type=float, default=0.0, show_default=True, help="Mean seconds between turns, exponential."),
        ]
    ):
        function = option(function)
    return function


def workload(options: dict[str, Any], rng: Any, given: Callable[[str], bool], most_tokens: int) -> Any:
    """The trace that the options mean. `given(name)` says whether the user set an option; `most_tokens` is the longest prompt and output of
    a call. UsageError when the options contradict each other.
    """
    from sim.workload.arrivals import spread_buckets, with_arrivals
    from sim.workload.synthetic import Synthetic, draw, resampled, with_think_time

    rate = options["request_rate"]
    if options["trace"] is None:
        return _drawn(options, rng, Synthetic, draw, most_tokens)
    stray = [name for name in _DRAWN if given(name)]
    if stray:
        raise UsageError(f"--{stray[0].replace('_', '-')} is for requests that are drawn; the trace has its own")
    trace = _loaded(options)
    if options["resample"]:
        if options["num_prompts"] is None or rate is None:
            raise UsageError("--resample needs --num-prompts and --request-rate")
        trace = resampled(trace, options["num_prompts"], rng)
    elif options["num_prompts"] is not None:
        raise UsageError("--num-prompts with a trace needs --resample; --limit takes its first requests")
    if options["spread_arrivals"]:
        trace = spread_buckets(trace, options["spread_arrivals"], rng)
    if rate is not None:
        trace = with_arrivals(trace, rate, options["burstiness"], rng)
    elif given("burstiness"):
        raise UsageError("--burstiness needs --request-rate")
    return with_think_time(trace, options["think_time"], rng)


def _drawn(options: dict[str, Any], rng: Any, synthetic: Any, draw: Any, most_tokens: int) -> Any:
    if options["num_prompts"] is None:
        raise UsageError("what to serve? give --trace FILE, or --num-prompts N to draw requests")
    if options["limit"] is not None or options["resample"] or options["rate_scale"] != 1.0 or options["spread_arrivals"]:
        raise UsageError("--limit, --resample, --rate-scale and --spread-arrivals need a --trace")
    return draw(
        synthetic(
            num_prompts=options["num_prompts"],
            input_tokens=options["random_input_len"],
            output_tokens=options["random_output_len"],
            length_cv=options["random_length_cv"],
            prefix_tokens=options["random_prefix_len"],
            turns=options["turns"],
            think_s=options["think_time"],
            rate_per_s=math.inf if options["request_rate"] is None else options["request_rate"],
            burstiness=options["burstiness"],
            most_tokens=most_tokens,
        ),
        rng,
    )


def _loaded(options: dict[str, Any]) -> Any:
    from sim.workload.formats import load_trace
    from sim.workload.options import LoadOptions

    how = LoadOptions(seed=options["seed"], start_s=options["trace_start"], duration_s=options["trace_duration"])
    trace = load_trace(options["trace"], options["trace_format"], how).rate_scaled(options["rate_scale"])
    return trace if options["limit"] is None else trace.head(options["limit"])


def workload_origin(options: dict[str, Any]) -> dict[str, Any]:
    """The workload as plain attributes; a trace by name and content, for its place on this machine is nobody's business."""
    origin: dict[str, Any] = {}
    path: Path | None = options["trace"]
    if path is not None:
        origin = {"trace": path.name, "trace_sha256": _digest(path), "trace_format": options["trace_format"]}
        origin |= {name: options[name] for name in ("rate_scale", "spread_arrivals", "trace_start", "trace_duration")}
    names = ("num_prompts", "limit", "request_rate", "burstiness", "think_time", *(_DRAWN if path is None else ()))
    return origin | {name: options[name] for name in names if options[name] is not None}


def _digest(path: Path) -> str:
    total = hashlib.sha256()
    for each in sorted(path.glob("chunk-*")) if path.is_dir() else [path]:
        with each.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()
