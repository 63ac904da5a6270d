"""Options of commands as scenario and fleet files spell them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from sim.errors import UsageError
from simctl.options.option_groups import Setting, members_of


def parser_of(command: str) -> click.Command:
    """What reads the options of a command that answers a question: simulate, plan or what-if."""
    from simctl.options import plan_options, simulate_options, what_if_parser

    parsers = {"simulate": simulate_options.PARSER, "plan": plan_options.PARSER, "what-if": what_if_parser.PARSER}
    return parsers[command]


def context_of(command: click.Command, given: Mapping[str, Any]) -> click.Context:
    """The context of a command that reads options of a file. Raises click.UsageError for a value that it refuses."""
    known = options_by_name(command)
    return command.make_context(command.name, [], default_map={known[name].name: value for name, value in given.items()})


def options_of(command: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a file as the command reads them, with its defaults. Raises as `context_of`."""
    return dict(context_of(parser_of(command), given).params)


def command_line(command: str, given: Mapping[str, Any]) -> str:
    """The same as words for a shell."""
    known = options_by_name(parser_of(command))
    return f"simctl {command} {shlex.join(part for name, value in given.items() for part in arguments_of(name, value, known[name]))}"


def options_by_name(command: click.Command) -> dict[str, click.Option]:
    """The command's options, and the settings of its groups, by their long names without the dashes."""
    found = [option for option in members_of(command.params) if option.name not in ("as_json", "out", "plot", "chrome_trace")]
    return {name.removeprefix("--"): option for option in found for name in option.opts if name.startswith("--")}


def option_value(where: str, value: Any, option: click.Option, folder: Path | None = None) -> Any:
    """A value of a file as the option takes it, paths taken from `folder`. Raises UsageError that begins with `where`."""
    if option.is_flag:
        if isinstance(value, str) and value.casefold() in ("true", "false"):  # of --set
            value = value.casefold() == "true"
        if not isinstance(value, bool):
            raise UsageError(f"{where}: needs true or false")
        return value
    if isinstance(value, dict | bool) or value is None:
        raise UsageError(f"{where}: needs a value")
    if option.multiple:
        return [str(item) for item in (value if isinstance(value, list) else [value])]
    text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
    return str(folder / text) if folder and isinstance(option.type, click.Path) and not Path(text).is_absolute() else text


def arguments_of(key: str, value: Any, option: click.Option) -> list[str]:
    """A value of a file as words of the command line."""
    if isinstance(option, Setting):
        return [option.group, f"{key}={str(value).lower() if isinstance(value, bool) else value}"]
    if option.is_flag:
        return [f"--{key}"] if value else list(option.secondary_opts[:1])
    return [part for item in (value if option.multiple else [value]) for part in (f"--{key}", item)]
