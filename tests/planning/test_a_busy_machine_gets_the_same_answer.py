"""A plan made while other programs burn every core is the plan of an idle machine, byte for byte."""

import os
import subprocess
import sys

from tests.cli import run

ASKED = (
    *("plan", "--gpu", "L40S", "--model", "Llama-3.1-8B", "--request-rate", "2"),
    *("--random-input-len", "500", "--random-output-len", "50", "--slo", "ttft:p95<500ms tpot:p95<40ms", "--quick", "--json"),
)


def test_two_busy_loops_change_no_byte():
    idle = run(*ASKED)
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        busy = run(*ASKED)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    assert idle.code == busy.code == 0, idle.stderr
    assert idle.stdout == busy.stdout
