"""Kernels of quantised linear layers: which one multiplies by weights of a storage format, by engine, its version and the GPU.

    format        vLLM on Hopper                      vLLM elsewhere          SGLang
    int4          machete                             marlin                  marlin
    awq           machete; before vLLM 0.19 marlin    marlin                  marlin
    fp8-block     deep_gemm                           deep_gemm on B200,      deep_gemm on Hopper and B200, else triton
                                                      else triton

Read from vLLM 0.15 to 0.33 (`choose_mp_linear_kernel`, `_POSSIBLE_FP8_BLOCK_KERNELS`) and SGLang 0.5. `--linear-backend` of vLLM chooses
another; names are those of that flag. Formats: 4-bit integers of GPTQ and compressed-tensors are int4; awq have zero points.
"""

from __future__ import annotations

from sim.errors import UsageError
from sim.specs.gpu import GpuSpec
from sim.specs.gpus import matrix_units_of

AUTO = "auto"
BACKENDS = {"int4": ("machete", "marlin"), "awq": ("machete", "marlin"), "fp8-block": ("deep_gemm", "cutlass", "triton")}
# The first kernel of blocks of fp8 that vLLM and SGLang have for the matrix units, where DeepGEMM is installed, as their wheels have it.
BLOCKS = {"wgmma": "deep_gemm", "tcgen05": "deep_gemm"}
HOPPER = "wgmma"
AWQ_BY_MACHETE = (0, 19)  # vLLM's first version whose AWQ layers choose among all kernels


def linear_kernel(storage: str, gpu: GpuSpec | None, engine: str = "vllm", version: str = "", backend: str = AUTO) -> str:
    """The kernel that multiplies by weights of a storage format; empty for formats without a choice. No version is the newest.

    UsageError for a backend that has no kernel of the format, or none on the GPU.
    """
    if backend != AUTO and backend not in sorted({each for known in BACKENDS.values() for each in known}):
        raise UsageError(f"linear-backend must be {AUTO}, machete, marlin, deep_gemm, cutlass or triton, got {backend!r}")
    if storage not in BACKENDS:
        if backend != AUTO:
            raise UsageError(f"linear-backend={backend}: {storage} weights have no such choice here; int4, awq and blocks of fp8 have")
        return ""
    units = matrix_units_of(gpu) if gpu is not None else ""
    if backend != AUTO:
        if backend not in BACKENDS[storage]:
            raise UsageError(f"linear-backend={backend}: no kernel of {storage} weights; there are {', '.join(BACKENDS[storage])}")
        if gpu is not None and backend in ("machete", "deep_gemm") and units not in ((HOPPER,) if backend == "machete" else BLOCKS):
            raise UsageError(
                f"linear-backend={backend}: no kernel for the {gpu.name}; it needs Hopper{'' if backend == 'machete' else ' or B200'}"
            )
        return backend
    if storage == "fp8-block":
        return BLOCKS.get(units, "triton")
    old_awq = storage == "awq" and _before(version, AWQ_BY_MACHETE)
    return "machete" if units == HOPPER and engine == "vllm" and not old_awq else "marlin"


def _before(version: str, first: tuple[int, int]) -> bool:
    numbers = version.split(".")[:2]
    return len(numbers) == 2 and all(each.isdecimal() for each in numbers) and tuple(map(int, numbers)) < first
