"""Options of `simctl simulate`, which plans, sweeps and fleet files take, too."""

from __future__ import annotations

import re
from pathlib import Path

import click

from sim.cluster.router import ROUTERS
from sim.engine.config import POLICIES
from sim.engine.versions import NEWEST
from simctl.options.option_groups import Sectioned, Setting, SettingGroup, as_settings, members_of
from simctl.options.option_types import ATTENTION, GOAL, LENGTH, MODEL, PAIR, ROUTER, SHARE
from simctl.options.shared_options import (
    deployment_options,
    grouped,
    host_option,
    limit_options,
    rate_options,
    served_option,
    workload_options,
)

MOST_BLOCKS = 2**24  # 268 million tokens in blocks of 16: beyond any node, and a block costs the simulator some 100 bytes
ARGUMENTS = "simctl.simulate.arguments"  # in the context: the command line
_GOAL = re.compile(r"\w+:[0-9.]+")


class GoodputCommand(Sectioned):
    """Takes `--goodput ttft:200 tpot:50` as vLLM's benchmark does: all the pairs that follow belong to the option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        joined: list[str] = []
        after = False
        for arg in args:
            if after and _GOAL.fullmatch(arg) and joined[-1] != "--goodput":
                joined[-1] += f" {arg}"
                continue
            after = arg == "--goodput" or (after and joined[-1] == "--goodput")
            joined.append(arg)
        ctx.meta[ARGUMENTS] = tuple(as_settings(joined, self.get_params(ctx)))
        return super().parse_args(ctx, joined)


SECTIONS = {
    "Workload": (
        "trace", "num-prompts", "agent-sessions", "users", "request-rate", "max-concurrency",
        "random-input-len", "random-output-len", "random-length-cv", "random-prefix-len",
        "workload-option",
    ),
    "Model and GPU": ("from-deployment", "model", "gpu", "dtype", "kv-dtype", "tp", "parallel", "posterior"),
    "Engine": (
        "engine", "max-num-seqs", "max-num-batched-tokens", "gpu-memory-utilization",
        "enable-prefix-caching", "attention", "engine-option",
    ),
    "Server": ("served", "overhead", "host", "host-rate"),
    "Fleet": ("fleet", "replicas", "router", "router-option", "admission"),
    "Answer": ("goodput", "goal", "draws", "seed", "iterations", "explain", "out", "plot", "chrome-trace", "json"),
}  # fmt: skip

simulate_options = grouped(
    workload_options,
    deployment_options,
    limit_options,
    click.option(
        "--engine-option",
        cls=SettingGroup,
        others=True,
        members=(
            Setting(["--max-model-len"], type=LENGTH, help="Longest prompt + output. [default: auto, the model's or what KV holds]"),
            Setting(["--block-size"], type=click.IntRange(1, 4096), default=16, show_default=True, help="Tokens in a KV block."),
            Setting(
                ["--scheduling-policy", "policy"],
                type=click.Choice(POLICIES),
                default="fcfs",
                show_default=True,
                help="Order of waiting requests; priority: by the trace's priority, lower first.",
            ),
            Setting(
                ["--prefill-schedule-interval"], type=click.IntRange(1), default=1, show_default=True, help="Prefill once in N iterations."
            ),
            Setting(["--engine-version"], default=NEWEST, show_default=True, help="vLLM version whose decisions and defaults are used."),
            Setting(
                ["--long-prefill-token-threshold"],
                type=click.IntRange(0),
                default=0,
                show_default=True,
                help="Most tokens of one prompt per iteration; 0: no limit.",
            ),
            Setting(["--enable-chunked-prefill"], is_flag=True, default=True, help="Cut prompts at the token budget. [default: on]"),
            Setting(["--num-gpu-blocks"], type=click.IntRange(2, MOST_BLOCKS), help="KV blocks, instead of those predicted from memory."),
            Setting(["--host-kv"], type=float, metavar="GB", help="Keep KV in this much host RAM and fetch what a decode reads."),
            Setting(["--kv-offloading-size"], type=float, metavar="GIB", help="Keep evicted prefix blocks in this much host RAM."),
            Setting(["--enforce-eager"], is_flag=True, help="Capture no CUDA graphs."),
            Setting(["--linear-backend"], default="auto", show_default=True, help="Kernel of quantised layers: machete, marlin, ..."),
            Setting(["--draft-model"], type=MODEL, help="Catalogue model that proposes the drafts of --engine-option draft_tokens=K."),
            Setting(["--enable-lora"], is_flag=True, help="Serve LoRA adapters."),
            Setting(["--max-lora-rank"], type=click.IntRange(1, 512), metavar="N", help="Largest rank of an adapter. [default: 16]"),
            Setting(["--max-loras"], type=click.IntRange(1, 4096), metavar="N", help="Most adapters on the GPU at once. [default: 1]"),
            Setting(["--lora-share"], type=SHARE, help="Share of the requests that use an adapter. [default: 1]"),
        ),
        help="A setting of the engine, its own or one of these; may be repeated.",
    ),
    click.option(
        "--attention", type=ATTENTION, default="dense", show_default=True, help="dense, sink-window, pages:K or blocks:K, as in what-if."
    ),
    click.option(
        "--enable-prefix-caching/--no-enable-prefix-caching",
        default=None,
        help="Reuse KV of equal prefixes. [default: on; off with recurrent state]",
    ),
    served_option,
    click.option(
        "--overhead",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Serving overhead of validate --save-overhead. [default: packaged]",
    ),
    host_option,
    click.option(
        "--host-rate",
        multiple=True,
        metavar="NAME=SECONDS",
        help="Set request_s, serial_s, prompt_token_s, response_s, token_s, or of an iteration iteration_s, sequence_s, prefill_s; "
        "none: without the API server's time.",
    ),
    click.option(
        "--fleet",
        "fleet_file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="YAML file of replica pools, their network and events, instead of --gpu, --model, engine, --replicas and --router.",
    ),
    click.option("--replicas", type=click.IntRange(1, 1024), default=1, show_default=True, help="Engines behind a router."),
    click.option(
        "--router",
        type=ROUTER,
        metavar="NAME",
        default="round-robin",
        show_default=True,
        help=f"Policy that picks a replica: {', '.join(ROUTERS)}, or a class's dotted path.",
    ),
    click.option("--router-option", multiple=True, metavar="NAME=VALUE", help="A setting of that router; may be repeated."),
    click.option(
        "--admission",
        cls=SettingGroup,
        members=(
            Setting(["--max-queue"], type=click.IntRange(1), help="Reject requests while this many wait for their first token."),
            Setting(["--token-bucket"], type=PAIR, metavar="RATE:BURST", help="Reject requests beyond this rate and burst of tokens."),
            Setting(["--admit-ttft"], type=float, metavar="MS", help="Reject requests whose predicted TTFT exceeds this."),
            Setting(["--skip-too-long"], is_flag=True, help="Reject requests beyond --max-model-len; without it they are an error."),
        ),
        help="Reject requests by these limits; may be repeated.",
    ),
    click.option(
        "--goodput", multiple=True, metavar="NAME:MS...", help="Limits in ms that a good request meets: ttft:200 tpot:50 e2el:5000."
    ),
    click.option(
        "--goal",
        type=GOAL,
        metavar="METRIC<=X",
        help="Also print the chance that this holds: p99_ttft_ms<=2000, or ttft:p99<2s.",
    ),
    click.option(
        "--iterations/--no-iterations", default=True, show_default=True, help="Keep the iteration log (ITL, queue, KV, step time)."
    ),
    rate_options,
    click.option("--draws", type=click.IntRange(0, 1000), help="Repeat at this many draws of the rates. [default: 20 if fast, else 0]"),
    click.option(
        "--out",
        type=click.Path(path_type=Path),
        metavar="DIR",
        help="Folder for run.nc and summary.json; both are written or none.",
    ),
    click.option("--explain", is_flag=True, help="Print all figures, and their sources."),
    click.option("--chrome-trace", type=click.Path(), metavar="FILE", help="Write iterations and requests as a Chrome trace (Perfetto)."),
    click.option(
        "--plot", type=click.Path(), metavar="FILE", help="Draw batch, queue, KV use, TTFT and output over time (PNG, SVG or PDF)."
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON instead of the table."),
)


@click.command("simulate", cls=GoodputCommand, sections=SECTIONS)
@simulate_options
def PARSER() -> None:
    """Reads the options; answers nothing."""


SIMULATE: list[click.Option] = [option for option in PARSER.params if isinstance(option, click.Option)]
next(option for option in SIMULATE if option.name == "gpu").required = False  # --fleet says it, too
# What a pool of a fleet file sets for itself
_OF_POOLS = (*SECTIONS["Model and GPU"], *SECTIONS["Engine"], "router")
POOL = click.Command("pool", params=[option for option in SIMULATE if option.opts[0].removeprefix("--") in _OF_POOLS])
POOL_OPTIONS = [name.removeprefix("--") for option in members_of(POOL.params) for name in option.opts if name.startswith("--")]
# And what it has keys of its own for
OF_POOLS = click.Command("pool", params=[*POOL.params, *(option for option in SIMULATE if option.name in ("replicas", "router_option"))])
