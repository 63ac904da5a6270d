"""`simctl --help` and `simctl what-if` import neither torch nor pymc, nor anything else that takes long to load."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "triton", "vllm", "pymc", "pytensor", "arviz", "xarray", "pandas", "simpy", "matplotlib", "scipy", "h5py", "numpy.ma")
PROBE = """
import sys
from simctl.cli import main
try:
    main(sys.argv[1:])
except SystemExit as stop:
    assert not stop.code, stop.code
print(",".join(sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["what-if", "--help"], ["what-if", "--ctx", "1M", "--gpu", "A10"], ["gpus"], ["models"]],
    ids=lambda a: " ".join(a),
)
def test_no_heavy_import(arguments):
    done = subprocess.run([sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stderr.strip().splitlines()[-1].split(","))
    assert not loaded & set(HEAVY)
