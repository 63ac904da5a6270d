"""Run the kernels through Triton's CPU interpreter where there is no CUDA device."""

import importlib.util
import os
from pathlib import Path

import torch

from tests.kernels.interpreter import quicken

# Triton reads this as a kernel is decorated, when a module of kernels/ is first imported: this file comes before that.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
    quicken()

# A GPU host may lack hypothesis: there the tests of properties are left out, and the head of the run names them.
collect_ignore: list[str] = []
if importlib.util.find_spec("hypothesis") is None:
    collect_ignore += sorted(p.name for p in Path(__file__).parent.glob("test_*.py") if "hypothesis" in p.read_text())


def pytest_report_header() -> str:
    return f"kernels: without hypothesis not run: {', '.join(collect_ignore)}" if collect_ignore else ""
