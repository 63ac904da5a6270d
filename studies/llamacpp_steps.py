"""llama.cpp's kernels on an H100, learnt from whole steps of one model and scored on others: `python -m studies.llamacpp_steps [OUT.npz]`.

docs/data/llamacpp-steps.csv holds medians of steps in process (`python studies/llamacpp_bench.py`). What a step of Llama-3.1-8B takes
beyond its other terms is its linear layers' time by rows; a weight is taken to need as long in all of them. OUT.npz: the packaged surfaces
with those of its two types.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sim.cost.gemm import LLAMA_CPP, gemms_of, gemms_on, roofline
from sim.cost.gemm_surface import KERNEL_BYTES, Surface, read_surfaces
from sim.files import package_path
from sim.rates.llamacpp_kernels import MOST
from sim.rates.load import load_rates
from sim.specs.gpus import get_gpu
from sim.specs.mixers import Attention
from sim.specs.precision import ACTIVATION_BYTES
from sim.study.deployment import Deployment
from sim.study.prices import step_time
from studies.kernel_tables.gemm_fit import SIZES, pack
from studies.program import program

DATA = Path("docs/data/llamacpp-steps.csv")
CARD, LEARNT = "H100", (("Llama-3.1-8B", "q4_k_m"), ("Llama-3.1-8B", "q8_0"))
HELD_OUT = tuple((model, dtype) for _, dtype in LEARNT for model in ("Qwen3-14B", "Llama-3.2-3B"))
MICRO_BATCH = 512


class Step(NamedTuple):
    """One measured step: so many sequences that decode at a context, or a prompt or chunk of tokens that ends there."""

    model: str
    dtype: str
    kind: str
    sequences: int
    context: int
    tokens: int
    seconds: float

    @property
    def rows(self) -> int:
        """Rows of its linear layers."""
        return self.sequences if self.kind == "decode" else self.tokens


def steps() -> list[Step]:
    """Decodes and prompts of one micro-batch."""
    with DATA.open(encoding="utf-8") as file:
        found = [
            Step(r["model"], r["dtype"], r["kind"], int(r["sequences"]), int(r["context_tokens"]), int(r["tokens"]), float(r["seconds"]))
            for r in csv.DictReader(file)
        ]
    return [step for step in found if step.kind != "sampling" and step.tokens <= MICRO_BATCH]


def predicted(step: Step, dtype: str) -> tuple[float, float, float, float]:
    """(seconds, 5 %, 95 %, seconds of linear layers) of a step on the card, without sampling."""
    d = Deployment.of(step.model, gpu=CARD, engine="llamacpp" if dtype == step.dtype else "vllm", dtype=dtype)
    rates = load_rates(d)
    none = {"c_seq_s": 0.0 * rates.draws.c_seq_s, "c_prefill_s": 0.0 * rates.draws.c_prefill_s}
    point = replace(rates.point, c_seq_s=0.0, c_prefill_s=0.0)
    if dtype != step.dtype:  # the terms beside linear layers, by llama.cpp's attention
        point = replace(point, **{name: min(getattr(point, name), most) for name, most in MOST.items()})
    rates = replace(rates, point=point, draws=replace(rates.draws, **none))
    whole = step.kind != "decode"
    found = step_time(d, () if whole else [step.context] * step.sequences, [(step.tokens, step.context)] if whole else (), rates)
    return found.seconds, found.low, found.high, found.terms["linear layers"]


def learnt(found: Sequence[Step], of: tuple[str, str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(rows, seconds a weight): medians over decodes and prompts of one model."""
    weights = sum(layers * gemm.k * gemm.n for gemm, layers in gemms_of(Deployment.of(of[0], gpu=CARD).model))
    by_rows: dict[int, list[float]] = {}
    for step in found:
        if (step.model, step.dtype) == of and step.kind != "chunk":
            seconds, _, _, linear = predicted(step, "bf16")
            by_rows.setdefault(step.rows, []).append((step.seconds - (seconds - linear)) / weights)
    rows = np.array(sorted(by_rows), dtype=float)
    return rows, np.array([np.median(by_rows[int(count)]) for count in rows])


def surface(kernel: str, rows: NDArray[np.float64], seconds: NDArray[np.float64]) -> Surface:
    """The surface of a kernel's times: the same seconds a weight at any size."""
    sixteen = gemms_on(get_gpu(CARD))
    assert sixteen is not None
    best = roofline(sixteen)
    empty = Surface(SIZES, rows, np.zeros((SIZES.size, rows.size)), best.bytes_per_s, best.flops_per_s, KERNEL_BYTES[kernel])
    over = [np.log(seconds * size) - np.log(empty.roofline_s(float(size), rows)) for size in 2.0**SIZES]
    return replace(empty, log_over=np.array(over))


def kernels(found: Sequence[Step]) -> None:
    """Print what a weight takes by rows in each model, and what attention reaches: by a decode's and a chunk's longest and shortest
    contexts.
    """
    for of in (*LEARNT, *HELD_OUT):
        rows, seconds = learnt(found, of)
        print(f"{'rows':29}" + "".join(f"{count:6.0f}" for count in rows))
        print(f"{of[0]:14} {of[1]:6} ps a w " + "".join(f"{1e12 * each:6.2f}" for each in seconds))
        model = Deployment.of(of[0], gpu=CARD).model
        mixer, mine = model.groups[0].mixer, [step for step in found if (step.model, step.dtype) == of and step.sequences == 1]
        assert isinstance(mixer, Attention)
        (near, far), (first, last) = (
            sorted((step.context, step.seconds) for step in mine if step.kind == kind)[:: len([s for s in mine if s.kind == kind]) - 1]
            for kind in ("decode", "chunk")
        )
        kv = 2 * ACTIVATION_BYTES * mixer.kv_heads * mixer.head_dim * model.layers * (far[0] - near[0]) / (far[1] - near[1])
        flops = 4.0 * MICRO_BATCH * mixer.heads * mixer.head_dim * model.layers * (last[0] - first[0]) / (last[1] - first[1])
        print(f"{'':14} attention: {kv / 1e12:.2f} TB/s of KV, {flops / 1e12:.0f} TFLOP/s")


def score(found: Sequence[Step]) -> None:
    """Print measured and predicted steps, then errors by model and type."""
    for model, dtype in (*LEARNT, *HELD_OUT):
        errors, inside = [], 0
        for step in (each for each in found if (each.model, each.dtype) == (model, dtype)):
            seconds, low, high, _ = predicted(step, step.dtype)
            errors.append(step.seconds / seconds - 1.0)
            inside += low <= step.seconds <= high
            shape = f"{step.sequences:3} x {step.context:6}" if step.kind == "decode" else f"{step.tokens:3} of {step.context:5}"
            figures = f"{1e3 * step.seconds:8.2f} ms  predicted {1e3 * seconds:8.2f} {100 * errors[-1]:+5.0f} %"
            print(f"{model:14} {step.kind:7} {shape} {figures}")
        role = "learnt from" if (model, dtype) in LEARNT else "held out"
        print(f"{model} {dtype}, {role}: {len(errors)} steps, median error {100 * np.median(np.abs(errors)):.0f} %, {inside} in their 90 %")


@program("studies.llamacpp_steps", "[OUT.npz]")
def main(argv: Sequence[str]) -> int:
    """Score what is packaged, or learn and write. Returns the exit code."""
    found = steps()
    if not argv:
        score(found)
        kernels(found)
        return 0
    with package_path("sim", "data/kernel_surfaces.npz").open("rb") as file:
        kept = read_surfaces(file)
    for of in LEARNT:
        rows, seconds = learnt(found, of)
        kernel = LLAMA_CPP[of[1]]
        kept[CARD, kernel] = surface(kernel, rows, seconds)
        print(kernel, "ps a weight", {int(count): round(1e12 * each, 2) for count, each in zip(rows, seconds, strict=True)})
    pack(kept, Path(argv[0]), "layers of vLLM 0.23, and steps of llama.cpp, on an H100, one model each")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
