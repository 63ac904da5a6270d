"""A command whose help shows its options under headings, and says N where click would say INTEGER RANGE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

Sections = Mapping[str, Sequence[str]]


class Sectioned(click.Command):
    """`sections` holds options (by their long name, without dashes) under each heading, in order; all others come last, as Options."""

    def __init__(self, *args: Any, sections: Sections, **more: Any) -> None:
        super().__init__(*args, **more)
        self.sections = sections
        for option in self.params:
            if isinstance(option, click.Option) and option.metavar is None and not (option.is_flag or option.count):
                if isinstance(option.type, click.types.IntParamType):
                    option.metavar = "N"
                elif isinstance(option.type, click.types.FloatParamType):
                    option.metavar = "NUMBER"

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shown = {param: param.get_help_record(ctx) for param in self.get_params(ctx)}
        named = {opt.lstrip("-"): param for param in shown for opt in param.opts}
        taken = [name for names in self.sections.values() for name in names]
        others = [record for param, record in shown.items() if record and param not in {named[name] for name in taken}]
        for title, records in {**{t: [shown[named[n]] for n in names] for t, names in self.sections.items()}, "Options": others}.items():
            if rows := [record for record in records if record]:
                with formatter.section(title):
                    formatter.write_dl(rows)
