"""simctl and the programs of hw turn one failure into the same line and the same exit code; only their names differ."""

import os
import signal
import time

import click
import pytest

from hw.exits import call
from sim.errors import SimctlError, UsageError
from simctl import cli

FAILURES = {
    "check": (SimctlError("the answer\nis no"), 1, "the answer is no"),
    "usage": (UsageError("no such GPU"), 2, "no such GPU"),
    "option": (click.UsageError("No such\n\n  option"), 2, "No such option"),
    "file": (FileNotFoundError(2, "No such file or directory", "a.nc"), 1, "a.nc: No such file or directory"),
    "system": (OSError(28, "No space left on device"), 1, "No space left on device"),
    "bare": (OSError("the stream ended"), 1, "the stream ended"),
    "interrupt": (KeyboardInterrupt(), 130, "interrupted"),
    "abort": (click.Abort(), 130, "interrupted"),
}


def failing(error):
    def callback():
        raise error

    return click.Command("fail", callback=callback)


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_one_line_and_its_code_in_both(name, monkeypatch, capsys):
    error, code, says = FAILURES[name]
    command = failing(error)
    monkeypatch.setattr(cli, "group", command)
    monkeypatch.setattr("sys.argv", ["program"])
    for program, run in (("simctl", lambda: cli.main([])), ("hw", lambda: call(command, "hw"))):
        with pytest.raises(SystemExit) as stop:
            run()
        out, err = capsys.readouterr()
        kept = "; what was measured is kept" if (program, code) == ("hw", 130) else ""
        assert (stop.value.code, out, err.strip()) == (code, "", f"{program}: {says}{kept}")


def test_a_command_that_says_itself_that_it_was_interrupted_has_the_code_of_what_did_it(monkeypatch):
    @click.command()
    def interrupted():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(5)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(130) from None

    monkeypatch.setattr(cli, "group", interrupted)
    assert cli.main([]) == 143
