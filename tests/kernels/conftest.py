"""Run the kernels through Triton's CPU interpreter where there is no CUDA device."""

import importlib.util
import os
from pathlib import Path

WITHOUT = [name for name in ("torch", "hypothesis") if importlib.util.find_spec(name) is None]
# A GPU host may lack hypothesis, a laptop torch: what needs them is left out, and the head of the run names it.
collect_ignore = sorted(
    p.name for p in Path(__file__).parent.glob("test_*.py") if "torch" in WITHOUT or (WITHOUT and "hypothesis" in p.read_text())
)

# Triton reads this as a kernel is decorated, when a module of kernels/ is first imported: this file comes before that.
if "torch" not in WITHOUT:
    import torch

    from tests.kernels.interpreter import quicken

    if not torch.cuda.is_available():
        os.environ.setdefault("TRITON_INTERPRET", "1")
        quicken()


def pytest_report_header() -> str:
    return f"kernels: without {', '.join(WITHOUT)} not run: {', '.join(collect_ignore)}" if collect_ignore else ""
