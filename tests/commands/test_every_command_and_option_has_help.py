"""Every command, and every option of every command, says what it is for; help fits an 80-column terminal."""

import importlib

import click
import pytest

from simctl.cli import COMMANDS, group
from tests.cli import run


@pytest.mark.parametrize("name", COMMANDS)
def test_command_and_options_have_help(name):
    command = importlib.import_module(COMMANDS[name][0]).command
    assert command.name == name
    assert command.help
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.opts[0]} has no help"


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_fits_80_columns(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = run(*([name] if name else []), "--help")
    assert result.code == 0
    assert max(len(line) for line in result.stdout.splitlines()) <= 80


def test_group_lists_every_command():
    context = click.Context(group)
    assert group.list_commands(context) == list(COMMANDS)
    assert all(group.get_command(context, name) for name in COMMANDS)


def test_unknown_command_is_usage():
    result = run("what-of")
    assert result.code == 2
    assert len(result.stderr.splitlines()) == 1
