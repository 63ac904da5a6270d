"""Exit codes of the programs of hw: an expected failure is one line on stderr."""

from __future__ import annotations

import sys

import click

from sim import termination
from sim.errors import INTERRUPTED, SimctlError, ending


def call(command: click.Command, program: str) -> None:
    """Run `command` with the arguments of this process; `program` is how its help names it."""
    try:
        with termination.as_interruption():
            command.main(prog_name=program, standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except (click.Abort, KeyboardInterrupt, click.ClickException, SimctlError, OSError) as error:
        code, text = ending(error)
        click.echo(f"hw: {text}{'; what was measured is kept' if code in (INTERRUPTED, termination.TERMINATED) else ''}", err=True)
        sys.exit(code)
