"""`python -m hw`: measure from a bare checkout, on a host where nothing of ours is installed."""

from __future__ import annotations

import sys

import click

from hw.command import command
from sim.errors import SimctlError


def main() -> None:
    """Run the command; expected failures become one line on stderr and their exit code."""
    try:
        command.main(prog_name="python -m hw", standalone_mode=False)
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


if __name__ == "__main__":
    main()
