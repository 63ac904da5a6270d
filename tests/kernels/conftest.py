"""Run the kernels through Triton's CPU interpreter where there is no CUDA device."""

import os

import torch

# Triton reads this as a kernel is decorated, when a module of kernels/ is first imported: this file comes before that.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
