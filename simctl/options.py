"""Options that several commands share."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sim.errors import UsageError
from sim.specs.lookup import did_you_mean
from sim.units import parse_tokens
from sim.workload.formats import FORMATS

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


class Parsed(click.ParamType):
    """What `read` makes of a text. One for which it raises ValueError is refused: it is `wrong`, or what a UsageError says of it."""

    def __init__(self, name: str, read: Callable[[str], Any], wrong: str = "") -> None:
        self.name, self._read, self._wrong = name, read, wrong

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)
        except ValueError:
            self.fail(f"{self._wrong}: {value!r}", param, ctx)


class Named(click.ParamType):
    """A name of a catalogue, which shells complete in either case, or a file."""

    name = "text"

    def __init__(self, names: Callable[[], list[str]]) -> None:
        self._names = names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name) for name in self._names() if name.casefold().startswith(incomplete.casefold())]
        return found or [CompletionItem(incomplete, type="file")]


def _gpus() -> list[str]:
    from sim.specs.gpus import list_gpus

    return list_gpus()


def _models() -> list[str]:
    from sim.specs.models import list_models

    return list_models()


def _curves() -> list[str]:
    from sim.workload.rate_curve import list_curves

    return list_curves()


def _routers() -> list[str]:
    from sim.cluster.router import ROUTERS

    return list(ROUTERS)


class RouterName(Named):
    """The name of a router, or the dotted path of a class."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from sim.cluster.router import router_options

        try:
            router_options(value)
        except UsageError as error:
            self.fail(str(error), param, ctx)
        return value


def _require(holds: bool) -> None:
    if not holds:
        raise ValueError


def _batches(text: str) -> tuple[int, ...]:
    numbers = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    _require(all(1 <= n <= 4096 for n in numbers))
    return numbers


def _fraction(text: str) -> float:
    number = float(text)
    _require(0 < number < 1)
    return number


def _share(text: str) -> float:
    return 1.0 if float(text) == 1 else _fraction(text)


def _batch_cap(text: str) -> int | float:
    kind, _, tau = text.rpartition(":")
    if kind == "knee":
        return _fraction(tau)
    number = int(text)
    _require(1 <= number <= 1_000_000)
    return number


def _attention(text: str) -> tuple[str, int]:
    kind, colon, k = text.partition(":")
    if kind in ("dense", "sink-window") and not colon:
        return kind, 0
    _require(kind in ("pages", "blocks") and k.isdecimal() and 1 <= int(k) <= 4096)
    return kind, int(k)


def _seconds(text: str) -> float:
    unit = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(text.strip()[-1:], 0.0)
    seconds = float(text.strip()[:-1]) * unit if unit else float(text)
    _require(0 < seconds < math.inf)
    return seconds


def _goal(text: str) -> tuple[str, float]:
    metric, _, limit = text.partition("<=")
    _require(re.fullmatch(r"\s*[\w.]+\s*", metric) is not None and not math.isnan(float(limit)))
    return metric.strip(), float(limit)


def _pair(text: str) -> tuple[float, float]:
    first, _, second = text.partition(":")
    return float(first), float(second)


TOKENS = Parsed("tokens", parse_tokens)
LENGTH = Parsed("tokens|auto", lambda text: text if text == "auto" else parse_tokens(text))
BATCHES = Parsed("n[,n...]", _batches, "not whole numbers from 1 to 4096 with commas between them")
FRACTION = Parsed("fraction", _fraction, "not a fraction between 0 and 1")
SHARE = Parsed("fraction", _share, "not a fraction between 0 and 1")  # all of it is one, too
BATCH_CAP = Parsed("n|knee:tau", _batch_cap, "neither a batch from 1 up nor knee:TAU with TAU between 0 and 1")  # a knee as a float
ATTENTION = Parsed("policy", _attention, "none of dense, sink-window, pages:K and blocks:K with K from 1 to 4096")
DURATION = Parsed("time", _seconds, "not a time (examples: 90, 120s, 2m)")
GOAL = Parsed("metric<=x", _goal, "needs METRIC<=NUMBER, for example 'p99_ttft_ms<=2000'")
GPU, MODEL, CURVE, ROUTER = Named(_gpus), Named(_models), Named(_curves), RouterName(_routers)
PAIR = Parsed("rate:burst", _pair, "not RATE:BURST")


class Setting(click.Option):
    """An option that the command line gives as NAME=VALUE of its `SettingGroup`, and a scenario or fleet file by its own name."""

    group = ""

    def get_error_hint(self, ctx: click.Context | None) -> str:
        return f"'{self.group} {self.opts[0].removeprefix('--')}'"


class SettingGroup(click.Option):
    """`--GROUP NAME=VALUE`, repeatable: each pair is one of `members`, which the command receives under their own names.

    With `others`, pairs of further names are the command's to read, under the group's name; else they are refused.
    """

    def __init__(self, decls: Sequence[str], members: Sequence[Setting], *, others: bool = False, **more: Any) -> None:
        super().__init__(decls, multiple=True, metavar="NAME=VALUE", expose_value=others, **more)
        self.members, self.others = tuple(members), others
        self.known = {name.lstrip("-"): member for member in members for name in member.opts}
        for member in members:
            member.group = decls[0]

    def split(self, pairs: Sequence[str]) -> tuple[dict[str, Any], tuple[str, ...]]:
        """(settings by parameter name, pairs of further names). Raises click.BadParameter for a name that nobody reads."""
        found: dict[str, Any] = {}
        rest: list[str] = []
        for pair in pairs:
            name, equals, value = str(pair).partition("=")
            member = self.known.get(name.replace("_", "-"))
            if member is not None and (equals or member.is_flag):
                found[member.name or ""] = value if equals else "true"
            elif member is not None:
                raise click.BadParameter(f"{name} needs a value", param=self)
            elif self.others:
                rest.append(str(pair))
            else:
                there = [each.opts[0].lstrip("-") for each in self.members]
                raise click.BadParameter(f"no setting {name!r}{did_you_mean(name, there)}; there are {', '.join(there)}", param=self)
        return found, tuple(rest)

    def handle_parse_result(self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]) -> tuple[Any, list[str]]:
        pairs, source = self.consume_value(ctx, opts)
        found, rest = self.split(pairs if isinstance(pairs, list | tuple) else ())
        for member in self.members:
            member.handle_parse_result(ctx, found, [])
        if not self.others:
            return None, args
        value, args = super().handle_parse_result(ctx, {self.name or "": rest} if found or rest else {}, args)
        ctx.set_parameter_source(self.name or "", source)
        return value, args


def members_of(params: Sequence[click.Parameter]) -> list[click.Option]:
    """All options of a command, those inside of groups for their groups; a group that also takes other names stays."""
    found: list[click.Option] = []
    for option in params:
        if isinstance(option, SettingGroup):
            found += [*option.members, *([option] if option.others else [])]
        elif isinstance(option, click.Option):
            found.append(option)
    return found


class Sectioned(click.Command):
    """A command whose help shows its options under headings, in order; all others come last, as Options.

    `sections` maps a heading to long option names without dashes. Integers are called N, not INTEGER RANGE.
    """

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[str]], **more: Any) -> None:
        super().__init__(*args, **more)
        self.sections = sections
        for option in members_of(self.params):
            if option.metavar is None and not (option.is_flag or option.count):
                if isinstance(option.type, click.types.IntParamType):
                    option.metavar = "N"
                elif isinstance(option.type, click.types.FloatParamType):
                    option.metavar = "NUMBER"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(_as_settings(args, self.get_params(ctx))))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        params = self.get_params(ctx)
        named = {opt.lstrip("-"): param for param in params for opt in param.opts}
        listed = {title: [named[name] for name in names] for title, names in self.sections.items()}
        taken = {param for each in listed.values() for param in each}
        for title, each in (listed | {"Options": [param for param in params if param not in taken]}).items():
            if rows := [row for param in each for row in _help_rows(ctx, param)]:
                with formatter.section(title):
                    formatter.write_dl(rows)


def _as_settings(args: Sequence[str], params: Sequence[click.Parameter]) -> Iterator[str]:
    """Arguments in which `--enforce-eager`, as engines spell it, is `--engine-option enforce-eager=true`: so for all settings of groups."""
    own = {name for param in params for name in (*param.opts, *param.secondary_opts)}
    known = {name: member for param in params if isinstance(param, SettingGroup) for member in param.members for name in member.opts}
    rest = list(args)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        off = name.startswith("--no-") and name not in known
        member = known.get(name.replace("--no-", "--", 1) if off else name)
        if word == "--" or name in own or member is None or (off and not member.is_flag) or not (equals or member.is_flag or rest):
            yield word
            if word == "--":
                yield from rest
                return
            continue
        value = "false" if off else value if equals else "true" if member.is_flag else rest.pop(0)
        yield from (member.group, f"{member.opts[0].lstrip('-')}={value}")


def _help_rows(ctx: click.Context, param: click.Parameter) -> list[tuple[str, str]]:
    """The help of an option and, of a group, below it that of its settings."""
    record = param.get_help_record(ctx)
    settings = [each.get_help_record(ctx) for each in param.members] if isinstance(param, SettingGroup) else []
    names = [(f"  {row[0].removeprefix('--').split(',')[0].replace(' ', '=')}", row[1]) for row in settings if row]
    return ([record] if record else []) + names


def grouped(*options: Callable[..., Any]) -> Callable[..., Any]:
    """One decorator for several options, in this order."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def _take_deployment(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    """What a deployment file says, as defaults of the command's options."""
    if path is None:
        return
    from simctl.asked.from_deployment import defaults_for, read_deployment

    found = read_deployment(path)
    defaults, unused = defaults_for(found, {option.name or "" for option in members_of(ctx.command.params)})
    ctx.default_map = {**(ctx.default_map or {}), **defaults}
    click.echo(f"{path.name}: {', '.join(f'{name} {value}' for name, value in defaults.items())}", err=True)
    if unused:
        click.echo(f"{path.name}: not used: {', '.join(unused)}", err=True)


deployment_options = grouped(
    click.option(
        "--from-deployment",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_take_deployment,
        help="Defaults from a `vllm serve` or SGLang command line, or a compose, Kubernetes, KServe, llm-d or Dynamo file.",
    ),
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
            Setting(["--pipeline-parallel-size", "--pp"], type=click.IntRange(1, 1024), default=1, metavar="N", help="Stages of layers."),
            Setting(
                ["--data-parallel-size", "--dp"],
                type=click.IntRange(1, 1024),
                default=1,
                metavar="N",
                help="Ranks with attention and KV of their own.",
            ),
            Setting(["--enable-expert-parallel", "--ep"], is_flag=True, help="Experts whole on a GPU each, not cut."),
            Setting(["--gpus-per-node"], type=click.IntRange(1, 1024), help="GPUs that a node has. [default: the topology's, 8 for most]"),
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
    click.option(
        "--max-num-batched-tokens", type=click.IntRange(1), metavar="N", help="Token budget per iteration. [default: the engine's]"
    ),
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

# An option left out takes the default of sim.Workload, which the help repeats.
workload_options = grouped(
    click.option("--trace", type=click.Path(exists=True, path_type=Path), help="Trace file, or ServeGen's folder."),
    click.option(
        "--trace-format",
        type=click.Choice(list(FORMATS)),
        metavar="FORMAT",
        default="jsonl",
        show_default=True,
        help=f"One of {', '.join(FORMATS)}.",
    ),
    click.option(
        "--workload-option",
        cls=SettingGroup,
        members=(
            Setting(["--limit"], type=click.IntRange(1), metavar="N", help="Only the trace's first N requests."),
            Setting(["--rate-scale"], type=float, help="Let the trace arrive this many times as fast. [default: 1]"),
            Setting(["--spread-arrivals"], type=float, help="Put arrivals off by up to so many seconds, at random (Mooncake: 3)."),
            Setting(["--prefix-block"], type=click.IntRange(1, 2**20), metavar="N", help="Tokens of a prefix id or hash. [default: 512]"),
            Setting(["--time-unit"], type=click.Choice(("s", "ms")), help="Unit of a Mooncake-like trace's times. [default: inferred]"),
            Setting(["--chars-per-token"], type=click.FloatRange(0.1, 100), metavar="X", help="How texts are counted. [default: 4]"),
            Setting(["--assume-prefix"], type=click.IntRange(1), metavar="N", help="Tokens all prompts begin with, if unsaid."),
            Setting(["--trace-start"], type=float, help="ServeGen: draw from this second on. [default: 0]"),
            Setting(["--trace-duration"], type=float, help="ServeGen: draw this many seconds. [default: 3600]"),
            Setting(["--resample"], is_flag=True, help="Draw --num-prompts requests with the trace's lengths."),
            Setting(["--agent-opening-len"], type=click.IntRange(1), help="Mean new tokens of an agent's first prompt. [default: 22000]"),
            Setting(["--agent-edited-share"], type=float, help="Share of agents' later turns with a rewritten context. [default: 0.6]"),
        ),
        help="A setting of the trace, or of agents; may be repeated.",
    ),
    click.option("--num-prompts", type=click.IntRange(1, 10_000_000), help="Requests to draw, without a trace or with resample."),
    click.option("--agent-sessions", type=click.IntRange(1, 1_000_000), metavar="N", help="Sessions of agents to draw instead."),
    click.option("--request-rate", type=float, help="Requests (sessions) per second, instead of the trace's times; inf: all at once."),
    click.option("--burstiness", type=float, help="1: Poisson; less: bursts; inf: constant gaps. [default: 1]"),
    click.option("--rate-curve", type=CURVE, metavar="NAME", help="Rate over time: a CSV or servegen-day; --request-rate is its mean."),
    click.option("--max-concurrency", type=click.IntRange(1), help="Most requests in flight: a closed loop of clients."),
    click.option("--random-input-len", type=click.IntRange(1), help="Mean new prompt tokens. [default: 1024; agents: 3000]"),
    click.option("--random-output-len", type=click.IntRange(1), help="Mean output tokens. [default: 128; agents: 180]"),
    click.option("--random-length-cv", type=float, help="Log-normal lengths with this CV; 0: fixed. [default: 0]"),
    click.option("--random-range-ratio", type=float, help="Uniform lengths within this share of the means, as vllm bench. [default: 0]"),
    click.option("--random-prefix-len", type=click.IntRange(0), help="System prompt shared by all. [default: 0; agents: 5200]"),
    click.option("--turns", type=click.IntRange(1), help="Requests per session; the context grows. [default: 1; agents: 4.43 in the mean]"),
    click.option("--think-time", type=float, help="Mean seconds between turns, exponential. [default: 0; agents: 5.3, log-normal]"),
)


def log_options(*more: Setting) -> Callable[..., Any]:
    """What a served log does not say of its server, and how to read it; `more` are further settings of --log-option."""
    return grouped(
        click.option("--model", type=MODEL, help="Model it served: catalogue name or config.json."),
        click.option("--gpu", type=GPU, help="GPU it ran on."),
        click.option("--dtype", default="bf16", show_default=True, help="Weight dtype."),
        click.option("--tp", "-tp", default=1, show_default=True, type=click.IntRange(1, 64), help="GPUs per replica."),
        click.option("--engine", default="vllm", show_default=True, help="vllm, sglang, llamacpp, or a scheduler class's dotted path."),
        click.option("--max-num-seqs", type=click.IntRange(1), help="Engine limit it was taken under. [default: the engine's]"),
        click.option("--max-num-batched-tokens", type=click.IntRange(1), help="Engine limit it was taken under. [default: the engine's]"),
        click.option(
            "--max-concurrency", type=click.IntRange(1), metavar="N", help="Requests the benchmark kept in flight. [default: as it says]"
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
                Setting(["--assume-prefix"], type=click.IntRange(0), default=0, help="Tokens all prompts began with, if unsaid."),
                Setting(["--timeout"], type=DURATION, help="How long clients waited, if unsaid; failures are censored."),
                *more,
            ),
            help="How the log was taken; may be repeated.",
        ),
    )


def fit_option(*more: Setting) -> Callable[..., Any]:
    """How to sample; `more` are further settings of --fit-option."""
    draws = Setting(["--draws"], type=click.IntRange(100), help="Draws per chain. [default: 600, 2000 for a GPU never measured]")
    chains = Setting(["--chains"], default=4, show_default=True, type=click.IntRange(2), help="Chains.")
    return click.option("--fit-option", cls=SettingGroup, members=(draws, chains, *more), help="Of the fit; may be repeated.")
