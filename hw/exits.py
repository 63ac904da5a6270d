"""How the programs of hw end: expected failures become one line on stderr and their exit code."""

from __future__ import annotations

import sys

import click

from sim.errors import SimctlError


def call(command: click.Command, program: str) -> None:
    """Run `command` with the arguments of this process; `program` is how its help names it."""
    try:
        command.main(prog_name=program, standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("hw: interrupted; what was measured is kept", err=True)
        sys.exit(130)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        click.echo(f"hw: {error.format_message()}", err=True)
        sys.exit(2)
    except SimctlError as error:
        click.echo(f"hw: {' '.join(str(error).split())}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        click.echo(f"hw: {error.filename or ''} {error.strerror or error}", err=True)
        sys.exit(1)
