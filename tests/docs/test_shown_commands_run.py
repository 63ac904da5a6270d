"""Commands that the documentation shows: all parse, and those in `sh` blocks run as written, page by page, in an empty folder.

Of simulations with few repeats; the slow tests run them with as many as a reader's.
"""

import os
import shlex
import subprocess
import sys

import click
import pytest

from simctl.cli import group
from simctl.options.option_groups import as_settings
from tests.docs.pages import CURRENT, FENCE, ROOT, name_of, shown_commands, text_of


def scripts():
    for path in CURRENT:
        blocks = [found["body"] for found in FENCE.finditer(text_of(path)) if found["info"] == "sh"]
        body = "".join(block for i, block in enumerate(blocks) if not any(block.rstrip("\n") in other for other in blocks[i + 1 :]))
        if body:
            yield pytest.param(body, id=name_of(path))


# In place of `python -m simctl`: most of a simulation's time goes into its repeats.
HURRIED = """\
import sys
from simctl.cli import main

if __name__ == "__main__":  # not in the workers of a plan
    if sys.argv[1] == "simulate":
        import sim.study.simulate
        sim.study.simulate.REPEATS, sim.study.simulate.DEFAULT_DRAWS = 10, 2
    sys.exit(main())
"""


@pytest.mark.parametrize("script", list(scripts()))
def test_shell_blocks_of_a_page_run(script, tmp_path):
    hurried = tmp_path / "hurried.py"
    hurried.write_text(HURRIED)
    runs(script, tmp_path, str(hurried))


@pytest.mark.slow
@pytest.mark.parametrize("script", [each for each in scripts() if "simctl simulate" in each.values[0]])
def test_simulations_of_a_page_run_with_all_their_repeats(script, tmp_path):
    runs(script, tmp_path, "-m simctl")


def runs(script, tmp_path, program_of):
    program = tmp_path / "bin" / "simctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {program_of} "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-e", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_python_blocks_of_a_page_run(tmp_path):
    for path in CURRENT:
        body = "".join(
            found["body"] for found in FENCE.finditer(text_of(path)) if found["info"] == "python" and "from sim" in found["body"]
        )
        if body:
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            call = [sys.executable, "-W", "error", "-c", body]
            done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{name_of(path)}: {done.stderr}"


@pytest.mark.parametrize("path", CURRENT, ids=name_of)
def test_options_of_every_shown_command_exist(path):
    for line in shown_commands(path):
        name, *arguments = shlex.split(line)[1:]
        if name == "COMMAND":
            continue
        command = group.get_command(click.Context(group), name)
        assert command is not None, line
        try:
            command.make_parser(click.Context(command)).parse_args(list(as_settings(arguments, command.params)))
        except click.NoSuchOption as unknown:
            pytest.fail(f"{line}: {unknown.format_message()}")
