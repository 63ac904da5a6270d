"""Device memory: what is resident, how many KV tokens fit, and how many sequences.

What an engine takes beside weights and KV (activation peak, captured graphs, what the driver keeps) is learnt from the KV blocks that
engines really got: `studies.engine_memory`, packaged as scenarios/data/posteriors/memory.json.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cache
from operator import mul
from typing import Any

from sim.cost.coefficients import coefficients
from sim.deployment.kv_layout import sequence_state_bytes
from sim.errors import SimctlError
from sim.files import package_path
from sim.specs.attention_policy import AttentionPolicy, dense
from sim.specs.gpu import GpuSpec
from sim.specs.model import ModelSpec
from sim.specs.parallel import NO_PARALLEL, Parallel
from sim.specs.precision import ACTIVATION_BYTES, Precision
from sim.specs.stored import group_bytes, stored
from sim.specs.vision import LARGEST_IMAGE

DEFAULT_UTILIZATION = 0.92  # vLLM's, 0.23 to 0.32
DEFAULT_TOKEN_BUDGET = 2048
DEFAULT_SEQS = 256
OVERHEAD, OVERHEAD_SCHEMA = "data/posteriors/memory.json", "simctl-memory/3"
PARTS = ("fixed_bytes", "kept_share", "server_bytes", "group_bytes", "mlp_copies", "logit_copies")


@dataclass(frozen=True, slots=True)
class Memory:
    """One GPU's memory in bytes: what utilisation allows, what is taken, what is left for KV (may be negative)."""

    allowed: float
    weights: float
    activations: float

    @property
    def free(self) -> float:
        return self.allowed - self.weights - self.activations


def resident_weight_bytes(model: ModelSpec, precision: Precision, tp: int = 1) -> float:
    """Weight bytes resident per GPU: as the checkpoint stores them, else every parameter at the precision's bytes."""
    found = stored(model, precision.weights)
    if found is not None:
        return found.total / tp
    return model.resident_bytes(precision.weight_bytes) / tp


def loaded_weight_bytes(model: ModelSpec, precision: Precision, tp: int = 1) -> float:
    """Weight bytes resident per GPU as engines load them: quantised or not, tables, the output projection and what a text step does not
    read (towers) keep 16 bits; experts in mxfp4 are padded; latents' projections, selectors and routers are whole on every GPU.
    """
    found = stored(model, precision.weights)
    replicated = sum(group.count * each.replicated for group, each in zip(model.groups, group_bytes(model, precision), strict=True))
    padding = padded_expert_bytes(model) / tp + replicated * (1.0 - 1.0 / tp)
    if found is not None:
        return resident_weight_bytes(model, precision, tp) + padding
    tables = model.embedding_params if model.tied_embeddings else model.embedding_params + model.lm_head_params
    narrower = max(0.0, ACTIVATION_BYTES - precision.weight_bytes)
    return resident_weight_bytes(model, precision, tp) + (tables + model.extra_params) * narrower / tp + padding


# Kernels of mxfp4 experts take whole tiles of rows and columns (vLLM 0.32: Marlin's and FlashInfer's). With these, starts of gpt-oss-20b
# and gpt-oss-120b on H100 leave 0.2 and 0.05 GB more for KV than predicted and less.
HIDDEN_TILE, EXPERT_TILE = 256, 128


def padded_expert_bytes(model: ModelSpec) -> float:
    """Bytes that experts whose precision the checkpoint fixes (gpt-oss: mxfp4) take more as loaded than as stored."""
    if model.expert_bits is None:
        return 0.0
    more = 0.0
    for group in model.groups:
        if group.mlp.kind == "moe":
            own = float(group.mlp.intermediate * model.hidden)
            tiles = -(-group.mlp.intermediate // EXPERT_TILE) * EXPERT_TILE * (-(-model.hidden // HIDDEN_TILE) * HIDDEN_TILE)
            matrices = group.mlp.expert_params(model.hidden) * model.expert_bits / 8
            more += group.count * group.mlp.experts * matrices * (tiles / own - 1.0)
    return more


def part_weight_bytes(model: ModelSpec, precision: Precision, tp: int = 1, parallel: Parallel = NO_PARALLEL) -> float:
    """Weight bytes as loaded on a GPU of the largest pipeline stage: its layers and one of the two tables, experts shared by all ranks."""
    whole = loaded_weight_bytes(model, precision, tp)
    c = coefficients(model, precision, tp)
    whole -= sum(one * count for one, count, _ in c.experts) * (1.0 - 1.0 / parallel.dp)
    if parallel.pp == 1:
        return whole
    tables = c.head_bytes * (1.0 if model.tied_embeddings else 2.0)
    return (whole - tables) * parallel.stage_share(model) + c.head_bytes


@dataclass(frozen=True, slots=True)
class Overhead:
    """Memory of a served engine beside weights and KV, as posterior draws [draw]: bytes for any model, and copies of two buffers it keeps.

    `fixed_bytes` holds captured graphs and workspaces, `kept_share` is what a device of that memory keeps for itself, `server_bytes` what a
    server takes more than the engine stepped in process, `group_bytes` what each GPU of a tensor-parallel group takes more (NCCL, the
    custom all-reduce: learnt from pairs with peer access); `mlp_copies` multiplies the widest MLP activation of a full iteration (16-bit),
    `logit_copies` the float32 logits of all sequences: their sum is the peak, unless encoding images takes more.
    """

    fixed_bytes: tuple[float, ...]
    kept_share: tuple[float, ...]
    server_bytes: tuple[float, ...]
    group_bytes: tuple[float, ...]
    mlp_copies: tuple[float, ...]
    logit_copies: tuple[float, ...]
    basis: str

    def draws(
        self, model: ModelSpec, memory_bytes: float, token_budget: int, max_num_seqs: int, tp: int = 1, logit_copies: float | None = None
    ) -> list[float]:
        """Bytes per GPU of `memory_bytes` at every draw, sorted; `logit_copies` in place of the learnt ones where they are given."""
        mlp, logits = buffers(model, token_budget, max_num_seqs, tp)
        counts = (1.0, memory_bytes, 1.0, float(tp > 1))
        image = image_bytes(model, token_budget, tp)
        found = []
        for *kept, mlps, copies in zip(*(getattr(self, name) for name in PARTS), strict=True):
            peak = mlps * mlp + (copies if logit_copies is None else logit_copies) * logits
            found.append(sum(map(mul, counts, kept)) + max(peak, image))
        return sorted(found)


def buffers(model: ModelSpec, token_budget: int, max_num_seqs: int, tp: int = 1) -> tuple[float, float]:
    """Bytes of (the widest MLP activation of `token_budget` tokens, the logits of `max_num_seqs` sequences), per GPU.

    A mixture of experts keeps, besides what its experts compute inside, the output of every chosen expert until they are summed. Tensor
    parallelism divides what is inside of an MLP; outputs are as wide as the model on each GPU, and logits are gathered on each.
    """
    width = max(
        g.mlp.top_k * (g.mlp.intermediate / tp + model.hidden) + g.mlp.shared_intermediate / tp
        if g.mlp.kind == "moe"
        else (g.mlp.intermediate / tp if g.mlp.kind == "dense" else model.hidden)
        for g in model.groups
    )
    return token_budget * width * ACTIVATION_BYTES, min(token_budget, max_num_seqs) * model.vocab * 4.0


def image_bytes(model: ModelSpec, token_budget: int, tp: int = 1) -> float:
    """Bytes of a GPU while a server's start encodes the largest images that its budget holds, one at the least, before it runs the model
    itself: the larger of the two peaks is kept free (vLLM's profile_run).
    """
    whole, divided = model.image_bytes
    return max(1, token_budget // LARGEST_IMAGE) * (whole + divided / tp)


@cache
def packaged_overhead() -> Overhead:
    """The overhead learnt from packaged runs. Raises SimctlError when the file is damaged."""
    try:
        body: dict[str, Any] = json.loads(package_path("scenarios", OVERHEAD).read_text(encoding="utf-8"))
        columns = {name: tuple(float(v) for v in body[name]) for name in PARTS}
        if body["schema"] != OVERHEAD_SCHEMA or len(set(map(len, columns.values()))) != 1 or min(map(min, columns.values())) < 0:
            raise ValueError("schema or columns")
        return Overhead(**columns, basis=str(body["basis"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SimctlError(f"{OVERHEAD}: not an engine's memory overhead ({error})") from None


def activation_bytes(
    model: ModelSpec,
    memory_bytes: float,
    token_budget: int = DEFAULT_TOKEN_BUDGET,
    tp: int = 1,
    max_num_seqs: int = DEFAULT_SEQS,
    share: float = 0.5,
    logit_copies: float | None = None,
) -> float:
    """Memory of a served engine beside weights and KV, per GPU of `memory_bytes`: the median over the draws, or the quantile
    `share` of them.
    """
    draws = packaged_overhead().draws(model, memory_bytes, token_budget, max_num_seqs, tp, logit_copies)
    return draws[min(len(draws) - 1, int(share * len(draws)))]


# What SGLang takes beside weights and its pools: of `mem-fraction-static` nothing else is taken off, activations live in the rest; but it
# is a fraction of what the driver and the process leave free, less NCCL's buffers in a group, and of memory that is also the CPU's, less
# the operating system: 7 GB by the one public line of a GB10 that is learnt from.
SGLANG_KEPT, SGLANG_GROUP, SGLANG_SYSTEM = 1.3e9, 0.6e9, 7e9


def sglang_kept_bytes(tp: int = 1, unified: bool = False) -> float:
    """Bytes of a GPU that are taken before SGLang measures what is free."""
    return SGLANG_KEPT + SGLANG_GROUP * (tp > 1) + SGLANG_SYSTEM * unified


# What GPUs without peer access take beyond a group with it: more of NCCL's channels and buffers, a context and pages for
# transfers through host memory, and on a workstation card what its desktop holds (up to 2 GB). Declared: median and log sd.
PEERLESS_BYTES, PEERLESS_SD = 1.2e9, 0.6


def peerless_bytes(share: float = 0.5) -> float:
    """Bytes that a GPU takes more in a group without peer access: the quantile `share`."""
    from statistics import NormalDist

    return PEERLESS_BYTES * math.exp(PEERLESS_SD * NormalDist().inv_cdf(min(max(share, 0.001), 0.999)))


def device_memory(
    model: ModelSpec,
    gpu: GpuSpec,
    precision: Precision,
    *,
    tp: int = 1,
    utilization: float = DEFAULT_UTILIZATION,
    token_budget: int = DEFAULT_TOKEN_BUDGET,
    max_num_seqs: int = DEFAULT_SEQS,
    share: float = 0.5,
    parallel: Parallel = NO_PARALLEL,
    logit_copies: float | None = None,
) -> Memory:
    """Memory of one GPU of a replica before any KV; `share` and `logit_copies` as in `activation_bytes`."""
    return Memory(
        allowed=utilization * gpu.memory_bytes,
        weights=part_weight_bytes(model, precision, tp, parallel),
        activations=activation_bytes(model, gpu.memory_bytes, token_budget, tp, max_num_seqs, share, logit_copies),
    )


def sequence_bytes(model: ModelSpec, context: int, precision: Precision, policy: AttentionPolicy, tp: int = 1) -> tuple[float, float]:
    """(bytes in HBM, bytes in host RAM) that one sequence of `context` tokens keeps, per GPU.

    With the cache in host RAM, the block summaries, the sliding-window layers' KV and the recurrent state stay in HBM.
    """
    c = coefficients(model, precision, tp)
    full = context * c.kept_token_bytes
    near = min(context, model.window) * c.kept_window_token_bytes if model.window else 0.0
    state = sequence_state_bytes(model, tp)
    summaries = context / policy.unit_tokens * c.summary_unit_bytes if policy.selects else 0.0
    if policy.kind == "sink-window":
        full = min(context, policy.keep_tokens) * c.kept_token_bytes  # what falls out of the window is dropped
    hbm = near + state + summaries
    return (hbm, full) if policy.placement == "host" else (hbm + full, 0.0)


def n_max(memory: Memory, bytes_per_sequence: float) -> float:
    """Sequences that fit, unrounded; below 1 the context is infeasible. Infinite when a sequence keeps nothing."""
    if bytes_per_sequence <= 0:
        return float("inf")
    return max(0.0, memory.free) / bytes_per_sequence


def block_bytes(
    model: ModelSpec, precision: Precision, block_size: int, policy: AttentionPolicy | None = None, tp: int = 1
) -> tuple[float, float]:
    """(bytes in HBM, bytes in host RAM) of one KV block of `block_size` tokens, per GPU, and the summaries that a selecting policy keeps
    beside it: all layers' KV at full length.
    """
    policy = policy or dense()
    c = coefficients(model, precision, tp)
    summaries = c.summary_unit_bytes / policy.unit_tokens if policy.selects else 0.0
    hbm, full = block_size * (c.kept_window_token_bytes + summaries), block_size * c.kept_token_bytes
    return (hbm, full) if policy.placement == "host" else (hbm + full, 0.0)
