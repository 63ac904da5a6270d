"""Stacks: what runs a decode step, an engine or a set of kernels, and the facts of its attention that its rates go with.

c0, c1, the gather from host RAM and the keep-set belong to whoever runs the step. A price takes all of them from one stack.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sim.errors import UsageError
from sim.specs.attention_policy import SINK_TOKENS, AttentionPolicy, Kind
from sim.specs.gpu import GpuSpec
from sim.specs.model import ModelSpec
from sim.specs.parallel import NO_PARALLEL, Parallel
from sim.specs.precision import Precision

ENGINE, KERNELS, SERVED_KERNELS, HARNESS = "vllm", "kernels", "vllm+kernels", "published-harness"

SELECTED_MOST = 128  # blocks that the kernels select (kernels/selector.py)


@dataclass(frozen=True, slots=True)
class DecodeStack:
    """One stack. `runs` are the kinds of attention it has a step for, and `host` whether a step may read KV from host RAM.

    `local_tokens` is the local window of its selections. `summary_bytes` are bytes that a step scans per block, KV head and key channel
    (two bounds). `several_rows` is the time of reading weights for two or more sequences over that for one. What a selected block costs
    grows by `per_sequence` of itself with each further sequence, and by `per_doubling` with each doubling of the context beyond 8K.
    `layer_kernels` launches a layer takes beside selection; None: as an engine's. `in_engine`: the step is the engine's, all but attention.
    """

    name: str
    what: str
    runs: tuple[Kind, ...]
    host: bool
    available: str
    local_tokens: int = 512
    summary_bytes: float = 4.0
    several_rows: float = 1.0
    per_sequence: float = 0.0
    per_doubling: float = 0.0
    layer_kernels: float | None = None
    in_engine: bool = False

    def policy(self, policy: AttentionPolicy) -> AttentionPolicy:
        """A policy with the keep-set of this stack."""
        return replace(policy, sink=SINK_TOKENS, local=self.local_tokens) if policy.selects else policy

    def lacks(self, policy: AttentionPolicy) -> str:
        """Why the stack has no such step; empty where it has one."""
        if policy.kind not in self.runs:
            return f"{self.name} has no such attention"
        return f"{self.name} decodes from HBM alone" if policy.placement == "host" and not self.host else ""

    def terms(self) -> str:
        """The facts that rates of this stack were learnt with, as one text."""
        numbers = (self.local_tokens, self.summary_bytes, self.several_rows, self.per_sequence, self.per_doubling)
        return f"{' '.join(f'{number:g}' for number in numbers)} {self.layer_kernels}"


# Facts of `kernels`: kernels/model_step.py launches eight kernels a layer and two, keeps one sink block and two local ones, and scans e4m3
# bounds (260 bytes a block and head of 128 channels). The three factors: least squares over 75 steps on an H100 and 83 on an H200 (of two
# and more rows 1.16 and 1.21, by sequence 0.10 and 0.08, by doubling 0.06 and 0.02).
STACKS = {
    stack.name: stack
    for stack in (
        DecodeStack(ENGINE, "a vLLM server", ("dense",), False, "it runs today"),
        DecodeStack(
            KERNELS,
            "this project's",
            ("dense", "sink-window", "blocks"),
            True,
            "from Python, or in vLLM",
            local_tokens=256,
            summary_bytes=260 / 128,
            several_rows=1.17,
            per_sequence=0.09,
            per_doubling=0.04,
            layer_kernels=8.0,
        ),
        DecodeStack(
            SERVED_KERNELS,
            "a vLLM server with this project's attention backend",
            ("dense", "blocks"),
            False,
            "to be had as its extra serve",
            local_tokens=256,
            summary_bytes=260 / 128,
            per_sequence=0.09,
            per_doubling=0.04,
            in_engine=True,
        ),
        DecodeStack(HARNESS, "the harness of published reports", ("dense", "sink-window", "pages", "blocks"), True, "not to be had"),
    )
}


def stack_named(name: str) -> DecodeStack:
    """The stack of this name. UsageError for an unknown one."""
    if name not in STACKS:
        raise UsageError(f"unknown stack {name!r}; there are {', '.join(STACKS)}")
    return STACKS[name]


def beyond_kernels(
    model: ModelSpec, gpu: GpuSpec, precision: Precision, tp: int = 1, parallel: Parallel = NO_PARALLEL, lora: bool = False
) -> str:
    """Why this project's whole decode step does not run a model so; empty where it does: dense decoders with full attention, 16 bits, one
    GPU with bf16.
    """
    if gpu.source.startswith("AMD"):
        return f"{gpu.name} is no CUDA GPU"
    if "bf16" not in gpu.flops:
        return f"{gpu.name} has no bf16"
    if tp > 1 or parallel.parts > 1:
        return "they run on one GPU"
    if precision.weights not in ("bf16", "fp16") or precision.kv not in ("bf16", "fp16"):
        return f"they read 16 bits, not {precision.weights} weights and {precision.kv} KV"
    if lora:
        return "they run no adapters"
    if any(g.mixer.kind != "attention" or g.mixer.window or g.mlp.kind != "dense" for g in model.groups):
        return f"they run dense decoders with full attention, not {model.name}"
    return ""
