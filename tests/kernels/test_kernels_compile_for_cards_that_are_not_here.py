"""Every kernel compiles for consumer cards of three generations, whose builds have neither TMA nor dependent launches."""

import os
import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("capability", ["86", "89", "121"])
def test_all_kernels_compile(capability: str) -> None:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "studies.kernel_checks.targets", capability], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    right, of = done.stdout.split(": ")[1].split(" kernels")[0].split(" of ")
    assert right == of
    assert int(of) >= 12
