"""A signal that comes while a string is executed, as when modules make their dataclasses, ends a command by its own code."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, sys
from sim import termination
from sim.errors import ending
try:
    with termination.as_interruption():
        eval(f"os.kill({os.getpid()}, signal.SIG) or sum(range(10**7))")
except KeyboardInterrupt as error:
    sys.exit(ending(error)[0])
"""


@pytest.mark.parametrize(("sign", "code"), [("INT", 130), ("TERM", 143)])
def test_it_is_no_death_by_signal(sign, code):
    done = subprocess.run([sys.executable, "-c", PROGRAM.replace("SIG)", f"SIG{sign})")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, "")
