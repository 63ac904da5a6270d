"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from sim.workload.formats import FORMATS, REPLAYS
from simctl.options.option_groups import Setting, SettingGroup, members_of
from simctl.options.option_types import BATCH_CAP, CURVE, DURATION, GPU, MODEL, PAUSE, PREFIX, SHARE, TOKENS


def grouped(*options: Callable[..., Any]) -> Callable[..., Any]:
    """One decorator for several options, in this order."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def _take_deployment(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    """Settings of a deployment file as defaults of the command's options."""
    if path is None:
        return
    from simctl.options.from_deployment import defaults_for, listing, read_deployment

    found = read_deployment(path)
    defaults, unused = defaults_for(found, {option.name or "" for option in members_of(ctx.command.params)})
    ctx.default_map = {**(ctx.default_map or {}), **defaults}
    for line in listing(path.name, [("", defaults)], unused):
        click.echo(line, err=True)


from_deployment_option = click.option(
    "--from-deployment",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    is_eager=True,
    expose_value=False,
    callback=_take_deployment,
    help="Defaults from a vLLM, SGLang or llama.cpp command line, a compose, Kubernetes, KServe, llm-d, Dynamo or Ray file.",
)

deployment_options = grouped(
    from_deployment_option,
    click.option("--model", type=MODEL, default="Qwen2.5-7B-1M", show_default=True, help="Catalogue name, or a Hugging Face config.json."),
    click.option("--gpu", type=GPU, required=True, help="Catalogue name (see `simctl gpus`), or a YAML file that describes one."),
    click.option(
        "--dtype", default=None, help="Weight dtype: bf16, fp16, fp8, int8, int4, nvfp4, mxfp4. [default: the checkpoint's, else 16 bits]"
    ),
    click.option("--kv-dtype", default=None, help="KV-cache dtype: bf16, fp16, fp8, int8. [default: 16 bits]"),
    click.option(
        "--tp", "--tensor-parallel-size", "-tp", default=1, show_default=True, type=click.IntRange(1, 64), help="GPUs per replica."
    ),
    click.option(
        "--parallel",
        cls=SettingGroup,
        members=(
            Setting(
                ["--pipeline-parallel-size", "--pp"],
                type=click.IntRange(1, 1024),
                default=1,
                metavar="N",
                help="Pipeline stages of layers.",
            ),
            Setting(
                ["--data-parallel-size", "--dp"],
                type=click.IntRange(1, 1024),
                default=1,
                metavar="N",
                help="Data-parallel ranks, each with its own attention and KV.",
            ),
            Setting(["--enable-expert-parallel", "--ep"], is_flag=True, help="Each expert whole on one GPU, not split over all."),
            Setting(["--gpus-per-node"], type=click.IntRange(1, 1024), help="GPUs per node. [default: the topology's, 8 for most]"),
            Setting(
                ["--topology"],
                type=click.Path(exists=True, dir_okay=False, path_type=Path),
                metavar="FILE",
                help="YAML: NVLink domain, PCIe, network. [default: the GPU's]",
            ),
        ),
        help="How a replica's GPUs share the work beyond --tp: pp=2, dp=8, ep. May be repeated.",
    ),
)

# What decides how much memory is left for KV: the same plan for what-if and simulate.
limit_options = grouped(
    click.option("--engine", default="vllm", show_default=True, help="vllm, sglang, llamacpp, or a scheduler class's dotted path."),
    click.option("--max-num-seqs", type=BATCH_CAP, help="Most requests running, or knee:0.65 (efficiency). [default: the engine's]"),
    click.option("--max-num-batched-tokens", type=TOKENS, metavar="N", help="Token budget per iteration. [default: the engine's]"),
    click.option("--gpu-memory-utilization", type=SHARE, help="Share of memory to use. [default: the engine's]"),
)

rate_options = grouped(
    click.option(
        "--posterior", type=click.Path(path_type=Path), metavar="FILE", help="Rates from this file. [default: the packaged posterior]"
    ),
    click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of all that is drawn: same seed, same answer."),
)

served_option = click.option(
    "--served/--in-process",
    default=True,
    show_default=True,
    help="Rates with the serving overhead of an engine that overlaps host work, or as stepped in process.",
)

host_option = click.option(
    "--host",
    "--host-scale",
    "host",
    metavar="X|FILE",
    help="Times of this host over those measured (0.5: twice as fast), the file of measure --suite host, or a host file of learn "
    "--host-out. [default: unknown]",
)

users_option = click.option(
    "--users",
    type=click.IntRange(1, 10_000_000),
    metavar="N",
    help="People who each send a request, read the answer, think, and send the next.",
)

# An option left out takes the default of sim.Workload, which the help repeats.
workload_options = grouped(
    click.option("--trace", type=click.Path(exists=True, path_type=Path), help="Trace file, or ServeGen's folder."),
    click.option(
        "--workload-option",
        cls=SettingGroup,
        members=(
            Setting(
                ["--trace-format"],
                type=click.Choice(list(FORMATS)),
                metavar="FORMAT",
                help=f"One of {', '.join(FORMATS)}. [default: what the content shows]",
            ),
            Setting(["--burstiness"], type=float, help="1: Poisson arrivals; less: bursts; inf: constant gaps. [default: 1]"),
            Setting(["--limit"], type=click.IntRange(1), metavar="N", help="Only the trace's first N requests."),
            Setting(
                ["--replay"],
                type=click.Choice(REPLAYS),
                help="open: turns at their recorded times; closed: after the answers before. [default: as the format has it]",
            ),
            Setting(["--rate-scale"], type=float, help="Replay the trace this many times as fast. [default: 1]"),
            Setting(["--spread-arrivals"], type=float, help="Delay each arrival at random by up to this many seconds (Mooncake: 3)."),
            Setting(["--prefix-block"], type=click.IntRange(1, 2**20), metavar="N", help="Tokens of a prefix id or hash. [default: 512]"),
            Setting(["--time-unit"], type=click.Choice(("s", "ms")), help="Unit of a Mooncake-like trace's times. [default: inferred]"),
            Setting(
                ["--chars-per-token"],
                type=click.FloatRange(0.1, 100),
                metavar="X",
                help="Characters that count as one token of a text. [default: 4]",
            ),
            Setting(
                ["--assume-prefix"],
                type=click.IntRange(1),
                metavar="N",
                help="Tokens that all prompts share at their start, if the trace does not say.",
            ),
            Setting(["--trace-start"], type=float, help="ServeGen: draw from this second on. [default: 0]"),
            Setting(["--trace-duration"], type=float, help="ServeGen: draw this many seconds. [default: 3600]"),
            Setting(["--resample"], is_flag=True, help="Draw --num-prompts requests with the trace's lengths."),
            Setting(["--rate-curve"], type=CURVE, metavar="NAME", help="Rate over time: CSV or servegen-day; --request-rate is its mean."),
            Setting(["--random-range-ratio"], type=float, help="Uniform lengths within this share of the means. [default: 0]"),
            Setting(["--num-prefixes"], type=click.IntRange(1), metavar="N", help="So many prefixes, each as often. [default: 1]"),
            Setting(["--turns"], type=click.IntRange(1), help="Requests per session; the context grows. [default: 1; agents: 4.43]"),
            Setting(
                ["--think-time"],
                type=PAUSE,
                help="Mean time between turns, or between requests of --users, exponential. [default: 0; agents: 5.3 s, log-normal]",
            ),
            Setting(["--agent-opening-len"], type=TOKENS, help="Mean new tokens of an agent's first prompt. [default: 22000]"),
            Setting(["--agent-opening-cv"], type=float, help="Coefficient of variation of agent-opening-len; 0: all equal. [default: 2]"),
            Setting(["--agent-edited-share"], type=float, help="Share of agents' later turns with a rewritten context. [default: 0.6]"),
            Setting(["--agent-subagents"], type=float, help="Mean subagents that a later turn waits for. [default: 0]"),
            Setting(["--agent-compact-at"], type=TOKENS, help="Context length at which a session summarises its context. [default: never]"),
            Setting(
                ["--agent-kinds"],
                type=click.Path(exists=True, dir_okay=False, path_type=Path),
                metavar="FILE",
                help="YAML list of several kinds of agents, with their shares.",
            ),
        ),
        help="A setting of the trace, or of what is drawn; may be repeated.",
    ),
    click.option("--num-prompts", type=click.IntRange(1, 10_000_000), help="Requests to draw, without a trace or with resample."),
    click.option("--agent-sessions", type=click.IntRange(1, 1_000_000), metavar="N", help="Sessions of agents to draw instead."),
    users_option,
    click.option("--request-rate", type=float, help="Requests (sessions) per second, instead of the trace's times; inf: all at once."),
    click.option("--max-concurrency", type=click.IntRange(1), help="Most requests in flight: a closed loop of this many clients."),
    click.option("--random-input-len", type=TOKENS, help="Mean new prompt tokens. [default: 1024; agents: 3000]"),
    click.option("--random-output-len", type=TOKENS, help="Mean output tokens. [default: 128; agents: 180]"),
    click.option("--random-length-cv", type=float, help="Log-normal lengths with this CV; 0: fixed. [default: 0]"),
    click.option("--random-prefix-len", type=PREFIX, help="System prompt shared by all. [default: 0; agents: 5200]"),
)


def log_options(*more: Setting) -> Callable[..., Any]:
    """Options on the server of a log, and on reading it; `more` are further settings of --log-option."""
    return grouped(
        from_deployment_option,
        click.option("--model", type=MODEL, help="Model it served: catalogue name or config.json."),
        click.option("--gpu", type=GPU, help="GPU it ran on."),
        click.option("--dtype", default="bf16", show_default=True, help="Weight dtype."),
        click.option("--tp", "-tp", default=1, show_default=True, type=click.IntRange(1, 64), help="GPUs per replica."),
        click.option("--engine", default="vllm", show_default=True, help="vllm, sglang, llamacpp, or a scheduler class's dotted path."),
        click.option("--max-num-seqs", type=click.IntRange(1), help="Engine limit of the server. [default: the engine's]"),
        click.option("--max-num-batched-tokens", type=click.IntRange(1), help="Engine limit of the server. [default: the engine's]"),
        click.option(
            "--max-concurrency",
            type=click.IntRange(1),
            metavar="N",
            help="Requests that the benchmark kept in flight. [default: as the log says]",
        ),
        click.option(
            "--log-option",
            cls=SettingGroup,
            members=(
                Setting(["--kv-dtype"], default="bf16", show_default=True, help="KV-cache dtype."),
                Setting(["--gpu-memory-utilization"], type=SHARE, help="Share of memory that the engine used. [default: the engine's]"),
                Setting(
                    ["--enable-prefix-caching"], type=bool, is_flag=True, default=None, help="Whether it cached prefixes. [default: on]"
                ),
                Setting(
                    ["--prefix-block"], default=512, show_default=True, type=click.IntRange(1), help="Tokens that a prefix id stands for."
                ),
                Setting(
                    ["--assume-prefix"],
                    type=click.IntRange(0),
                    default=0,
                    help="Tokens that all prompts shared at their start, if the log does not say.",
                ),
                Setting(["--engine-version"], help="Version of the engine. [default: the newest known]"),
                Setting(["--max-model-len"], type=TOKENS, help="Longest prompt + output of the server. [default: the model's]"),
                Setting(["--num-gpu-blocks"], type=click.IntRange(2), help="KV blocks that it logged. [default: predicted]"),
                Setting(["--kv-offloading-size"], type=float, metavar="GIB", help="Host RAM for evicted prefix blocks."),
                Setting(["--timeout"], type=DURATION, help="How long clients waited, if the log does not say; failures are censored."),
                *more,
            ),
            help="How the log was recorded; may be repeated.",
        ),
    )


def fit_option(*more: Setting) -> Callable[..., Any]:
    """The option of sampling; `more` are further settings of it."""
    draws = Setting(["--draws"], type=click.IntRange(100), help="Draws per chain. [default: 600, 2000 for a GPU never measured]")
    chains = Setting(["--chains"], default=4, show_default=True, type=click.IntRange(2), help="Chains.")
    seed = Setting(["--seed"], default=0, show_default=True, type=int, help="Seed of all that is drawn.")
    start = Setting(["--from-datasheet"], is_flag=True, help="Start from the datasheet, not from other measurements.")
    keep = Setting(["--allow-unconverged"], is_flag=True, help="Write the posterior even when a gate fails, marked as unconverged.")
    members = (draws, chains, *more, seed, start, keep)
    return click.option("--fit-option", cls=SettingGroup, members=members, help="A setting of the fit; may be repeated.")
