"""Progress is shown on a terminal, after a while; a pipe, a file and a fast command see none, and no answer changes."""

import os
import pty
import subprocess
import sys

import pytest

SLOW = """
import sys, time
import simctl.text.progress as p
p.AFTER_S = float(sys.argv[1])
with p.progress("outer work") as report:
    for i in range(3):
        if report:
            report(i, 3)
        with p.progress("inner work"):
            time.sleep(0.1)
print("answer")
"""
COMMAND = """
import sys, time
import simctl.text.progress as p
p.AFTER_S = 0.0
from simctl.from_options import served_runs as validate
from simctl.scenario_files.scenario import ScenarioCell
held = ScenarioCell.answer
ScenarioCell.answer = lambda cell: time.sleep(0.2) or held(cell)
validate._validated = lambda *given: time.sleep(0.3) or sys.exit(3)
from simctl.cli import main
main(sys.argv[1:])
"""


def watched(script: str, *arguments: str) -> tuple[str, str]:
    """(stdout, stderr) where stderr is a terminal."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen([sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, stderr=theirs, env=environment) as process:
        os.close(theirs)
        seen = b""
        try:
            while piece := os.read(ours, 4096):
                seen += piece
        except OSError:  # how Linux says that the other end is closed
            pass
        out = process.communicate()[0]
    os.close(ours)
    return out.decode(), seen.decode(errors="replace")


def test_slow_work_is_shown_with_the_work_in_it():
    out, seen = watched(SLOW, "0.05")
    assert "outer work" in seen
    assert "inner work" in seen
    assert out == "answer\n"


def test_fast_work_is_not():
    assert watched(SLOW, "60") == ("answer\n", "")


def test_a_pipe_sees_none():
    done = subprocess.run([sys.executable, "-c", SLOW, "0"], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("answer\n", "")


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (("run", "long_context_cards"), "runs"),
        (("validate", "--run", "h100/served_llama3.1-8b"), "replaying served_llama3.1-8b"),
    ],
)
def test_commands_show_it(arguments, shown):
    assert shown in watched(COMMAND, *arguments)[1]
