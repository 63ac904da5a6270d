"""Every command, and every option of every command, says what it is for; help fits an 80-column terminal."""

import importlib
import re

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


@pytest.mark.parametrize("name", ["calibrate", "learn", "simulate"])
def test_options_stand_once_each_under_the_headings_of_their_command(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    command = importlib.import_module(COMMANDS[name][0]).command
    asked = [option for options in command.sections.values() for option in options]
    assert len(asked) == len(set(asked))
    shown = run(name, "--help").stdout
    lines = shown.splitlines()
    heads = [re.split(r", | / | ", line[2:].split("  ")[0]) for line in lines if line.startswith("  -")]
    for parameter in (each for each in command.params if each.param_type_name == "option"):
        long = max(parameter.opts, key=len)
        assert sum(long in head for head in heads) == 1, long
    places = [lines.index(f"{title}:") for title in (*command.sections, "Options")]
    assert places == sorted(places)
    assert "INTEGER RANGE" not in shown


def test_every_command_that_is_not_a_list_shows_an_example():
    for name in COMMANDS:
        command = importlib.import_module(COMMANDS[name][0]).command
        assert name in ("models", "gpus", "cache") or f"  simctl {name} " in command.help, name


def test_group_lists_every_command():
    context = click.Context(group)
    assert group.list_commands(context) == list(COMMANDS)
    assert all(group.get_command(context, name) for name in COMMANDS)


def test_unknown_command_is_usage():
    result = run("what-of")
    assert result.code == 2
    assert len(result.stderr.splitlines()) == 1
