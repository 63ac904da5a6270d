"""Groups of settings, given as NAME=VALUE, and help that shows options under headings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from sim.specs.lookup import did_you_mean


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
        try:
            return super().parse_args(ctx, list(as_settings(args, self.get_params(ctx))))
        except click.NoSuchOption as error:
            known = {name for param in self.get_params(ctx) for name in param.opts}
            if here := [name for name in CALLED.get(error.option_name, ()) if name in known]:
                raise click.UsageError(f"No such option {error.option_name!r}: here it is {' or '.join(here)}", ctx) from None
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        params = self.get_params(ctx)
        named = {opt.lstrip("-"): param for param in params for opt in param.opts}
        listed = {title: [named[name] for name in names] for title, names in self.sections.items()}
        taken = {param for each in listed.values() for param in each}
        for title, each in (listed | {"Options": [param for param in params if param not in taken]}).items():
            if rows := [row for param in each for row in _help_rows(ctx, param)]:
                with formatter.section(title):
                    formatter.write_dl(rows)


# What people call an option -> what it is called here, of which a command has one or some
CALLED = {
    **dict.fromkeys(("--qps", "--rps", "--rate", "--arrival-rate", "--requests-per-second"), ("--request-rate",)),
    **dict.fromkeys(("--concurrency", "--clients", "--parallel-requests"), ("--max-concurrency", "--users")),
    **dict.fromkeys(("--input-len", "--isl", "--input-tokens", "--prompt-len", "--prompt-tokens"), ("--random-input-len", "--ctx")),
    **dict.fromkeys(("--output-len", "--osl", "--output-tokens", "--max-tokens", "--max-new-tokens"), ("--random-output-len",)),
    **dict.fromkeys(("--quantization", "--quant", "--quantize"), ("--dtype",)),
    **dict.fromkeys(("--gpus", "--num-gpus", "--n-gpus", "--gpu-count"), ("--tp", "--replicas")),
    **dict.fromkeys(("--batch-size", "--bs"), ("--batch", "--max-num-seqs")),
    **dict.fromkeys(("--context", "--context-len", "--seq-len", "--ctx-size"), ("--ctx", "--max-model-len")),
    **dict.fromkeys(("--requests", "--num-requests"), ("--num-prompts",)),
}
_SPELT = {
    "-pp": "--pp",
    "-dp": "--dp",
    "-ep": "--ep",
    "--kv-cache-dtype": "--kv-dtype",
    "--num-gpu-blocks-override": "--num-gpu-blocks",
    "--tp-size": "--tp",
    "--pp-size": "--pp",
    "--mem-fraction-static": "--gpu-memory-utilization",
    "--chunked-prefill-size": "--max-num-batched-tokens",
    "--max-running-requests": "--max-num-seqs",
    "--context-length": "--max-model-len",
    "--page-size": "--block-size",
    "--disable-radix-cache": "--no-enable-prefix-caching",
    "--disable-cuda-graph": "--enforce-eager",
}


def as_settings(args: Sequence[str], params: Sequence[click.Parameter]) -> Iterator[str]:
    """Arguments in which `--enforce-eager`, as engines spell it, is `--engine-option enforce-eager=true`: so for all settings of groups.
    Flags of vLLM and SGLang that go by another name here are taken, too.
    """
    own = {name for param in params for name in (*param.opts, *param.secondary_opts)}
    known = {name: member for param in params if isinstance(param, SettingGroup) for member in param.members for name in member.opts}
    rest = list(args)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name in _SPELT and name not in own:
            name = _SPELT[name]
            word = f"{name}{equals}{value}"
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
