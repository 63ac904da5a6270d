"""Memory of an engine beside weights and KV, learnt from the KV blocks that engines really got.

    overhead = utilization * device memory - weights - KV bytes got
    overhead = fixed + kept * device memory + server * [as a server] + group * [over several GPUs]
               + mlp_copies * widest MLP activation + logit_copies * logits + Normal(0, scale) by build + Normal(0, noise) by start

A fixed part (captured graphs, workspaces), what a driver keeps of a device and its page tables take, what a server takes that the same
engine stepped in process does not, and two buffers that grow with the token budget and with the number of sequences. `scale` is what the
line misses of one build (a model, its weights' dtype, its limits): started on another card, or as a server, it is off by the same, to
within `noise`. So few megabytes that builds started twice tell `kept` and `server`, and the others the rest.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from calibrate import backend
from calibrate.measurement import model_of, open_measurement, precision_of, whole_number
from calibrate.sampling import Compiled, Diagnostics, Graph, Settings, diagnose
from calibrate.served.runs import read_served
from sim.deployment.kv_layout import vllm_layout
from sim.deployment.memory import OVERHEAD_SCHEMA, buffers, loaded_weight_bytes
from sim.errors import UsageError
from sim.files import write_text
from sim.specs.gpus import get_gpu
from sim.specs.model import ModelSpec
from sim.specs.precision import Precision
from sim.study.deployment import default_batch_limits

Array = NDArray[np.float64]
GB = 1e9
UTILIZATION = 0.9  # what the engine stepped in process asks for (hw.engines.vllm_inprocess); servers take vLLM's default unless told
LEAST_RUNS = 4
PACKAGED_DRAWS = 200
NEEDED = ("kv_blocks", "block_size_tokens", "max_num_seqs", "max_num_batched_tokens", "gpu_name", "weight_dtype")


@dataclass(frozen=True, slots=True)
class KvRun:
    """One engine start: the blocks it got, bytes of one block, bytes left for KV and overhead, and the two buffers' bytes, each of one of
    its `tp` GPUs, of `memory_bytes` each; `server` is 0 where the engine was stepped in process.
    """

    name: str
    gpu: str
    model: str
    blocks: int
    block_bytes: float
    left_bytes: float
    mlp_bytes: float
    logit_bytes: float
    memory_bytes: float
    weight_dtype: str
    server: int = 0
    tp: int = 1

    @property
    def build(self) -> tuple[str, str, float, float, int]:
        """Key that starts of the same engine share, on whatever card."""
        return self.model, self.weight_dtype, self.mlp_bytes, self.logit_bytes, self.tp

    @property
    def overhead_bytes(self) -> float:
        return self.left_bytes - self.blocks * self.block_bytes


@dataclass(frozen=True)
class Fit:
    """Draws [draw] in bytes and copies, `scale` and `noise` in bytes, `kept` as a share of a device's memory."""

    fixed: Array
    kept: Array
    server: Array
    group: Array
    mlp: Array
    logits: Array
    scale: Array
    noise: Array
    diagnostics: Diagnostics

    def blocks(self, run: KvRun, rng: np.random.Generator) -> Array:
        """Predictive draws of the blocks a run gets."""
        mean = self.fixed + self.kept * run.memory_bytes + self.server * run.server + self.group * (run.tp > 1)
        mean += self.mlp * run.mlp_bytes + self.logits * run.logit_bytes
        miss = np.hypot(self.scale, self.noise) * rng.standard_normal(mean.size)
        return np.asarray((run.left_bytes - mean - miss) / run.block_bytes)


def read_run(path: Path) -> KvRun | None:
    """The engine start behind a measurement file; None when the file does not say how many blocks there were, when it is of another engine
    than vLLM, or when a profiler held device memory of its own beside the engine.
    """
    attrs = dict(open_measurement(path, ()).attrs)
    if attrs.get("suite") == "profile" or attrs.get("plan_engine", "vllm") != "vllm":
        return None
    if "plan_kv_tokens" in attrs:
        return _served_start(path, attrs)
    if any(name not in attrs for name in NEEDED):
        return None
    gpu, model = get_gpu(str(attrs["gpu_name"])), model_of(attrs, path)
    counts = ("kv_blocks", "block_size_tokens", "max_num_batched_tokens", "max_num_seqs")
    blocks, size, budget, seqs = (whole_number(attrs, name, 0, path) for name in counts)
    tp, memory = whole_number(attrs, "tensor_parallel_size", 1, path), float(gpu.memory_bytes)
    return kv_run(path.stem, gpu.name, memory, model, precision_of(attrs), blocks, size, budget, seqs, tp)


def _served_start(path: Path, attrs: dict[str, Any]) -> KvRun | None:
    """A server's start, from the tokens it said it has room for; None for a hybrid model, whose tokens are not blocks."""
    run = read_served(path)
    if len(vllm_layout(run.model, run.precision).groups) > 1:
        return None
    limits, (seqs, budget) = run.limits, default_batch_limits(run.gpu)
    blocks = whole_number(attrs, "plan_kv_tokens", 0, path) // limits.block_size
    seqs, budget = limits.max_num_seqs or seqs, limits.max_num_batched_tokens or budget
    sizes = (blocks, limits.block_size, budget, seqs, run.tp, limits.memory_share)
    return kv_run(run.name, run.gpu.name, float(run.gpu.memory_bytes), run.model, run.precision, *sizes, server=1)


def kv_run(
    name: str, gpu: str, memory_bytes: float, model: ModelSpec, precision: Precision, blocks: int, block_size: int, budget: int, seqs: int,
    tp: int = 1, utilization: float = UTILIZATION, server: int = 0,
) -> KvRun:  # fmt: skip
    """A run from its shape, all bytes those of one GPU; a block holds one group of layers. Raises UsageError for impossible blocks."""
    block_bytes = vllm_layout(model, precision, tp, block_size).block_bytes
    mlp, logits = buffers(model, budget, seqs, tp)
    left = utilization * memory_bytes - loaded_weight_bytes(model, precision, tp)
    run = KvRun(name, gpu, model.name, blocks, block_bytes, left, mlp, logits, memory_bytes, precision.weights, server, tp)
    if blocks < 1 or run.overhead_bytes < 0:
        raise UsageError(f"{name}: {blocks} KV blocks of {run.block_bytes:.0f} bytes do not fit in what {gpu} has beside the weights")
    return run


@cache  # sixty files
def packaged_runs() -> tuple[KvRun, ...]:
    """Every packaged measurement that says how many blocks its engine got."""
    from calibrate.measured_files import packaged_measurements

    found = [run for path in packaged_measurements() if "kernels" not in path.name and (run := read_run(path)) is not None]
    return tuple(distinct(found))


def distinct(runs: Sequence[KvRun]) -> list[KvRun]:
    """The runs without repeats: the same engine started again, on another machine too, gets the very same blocks."""
    first: dict[KvRun, KvRun] = {}
    for run in runs:
        first.setdefault(replace(run, name=""), run)
    return list(first.values())


def memory_model(runs: Sequence[KvRun]) -> Any:
    """pm.Model in GB; all pm.Data (`_columns`) may be replaced, in number too."""
    pm, pt = backend.pymc(), backend.tensor()
    data = _columns(runs)
    with pm.Model() as model:
        seen = {name: pm.Data(name, values) for name, values in data.items()}
        fixed = pm.HalfNormal("fixed", 1.5)
        kept = pm.HalfNormal("kept", 5e-3)
        server = pm.HalfNormal("server", 0.3)
        group = pm.HalfNormal("group", 0.5)
        mlp_copies = pm.LogNormal("mlp_copies", np.log(2.0), 0.7)
        # a sampler holds the logits, their odds and what it draws by; one that sorts them, six to nine times theirs
        logit_copies = pm.LogNormal("logit_copies", np.log(3.0), 0.7)
        scale = pm.HalfNormal("scale", 0.3)
        noise = pm.HalfNormal("noise", 0.02)
        mean = fixed * seen["one"] + kept * seen["memory"] + server * seen["serves"] + group * seen["grouped"]
        mean += mlp_copies * seen["mlp"] + logit_copies * seen["logits"]
        pm.Normal("overhead_gb", mean, pt.sqrt(scale**2 * seen["starts"] + noise**2), observed=seen["overhead"])
    return model


def learn(runs: Sequence[KvRun], settings: Settings) -> tuple[Fit, dict[str, Array]]:
    """(fit to all runs, predictive draws of the blocks of each run from a fit without its model). UsageError with too few runs."""
    if len(runs) < LEAST_RUNS:
        raise UsageError(f"too few engine starts to learn an overhead from: {len(runs)}, at least {LEAST_RUNS} are needed")
    compiled = Compiled(Graph(memory_model(runs)))
    held = {}
    for name in sorted({run.model for run in runs}):
        others = _fit(compiled, settings, [run for run in runs if run.model != name])
        for i, run in enumerate(r for r in runs if r.model == name):
            held[run.name + "@" + run.gpu] = others.blocks(run, np.random.default_rng([settings.seed, 70, i]))
    return _fit(compiled, settings, runs), held


def write(path: Path, fit: Fit, runs: Sequence[KvRun]) -> None:
    """The packaged form: draws of a server's overhead with the fit's own miss folded into the fixed part, whole or not at all."""
    from scipy.stats import norm

    pick = np.linspace(0, fit.fixed.size - 1, PACKAGED_DRAWS).round().astype(int)
    # one of each quantile, in a drawn order: of so few draws, random ones would move the middle by several megabytes
    miss = np.hypot(fit.scale, fit.noise)[pick] * norm.ppf((np.random.default_rng(71).permutation(PACKAGED_DRAWS) + 0.5) / PACKAGED_DRAWS)
    gpus = ", ".join(sorted({run.gpu for run in runs}))
    body = {
        "schema": OVERHEAD_SCHEMA,
        "basis": f"learnt from the KV blocks of {len(runs)} engine starts on {gpus}",
        "fixed_bytes": np.maximum(fit.fixed[pick] + miss, 0.0).round().tolist(),
        "kept_share": fit.kept[pick].round(6).tolist(),
        "server_bytes": fit.server[pick].round().tolist(),
        "group_bytes": fit.group[pick].round().tolist(),
        "mlp_copies": fit.mlp[pick].round(4).tolist(),
        "logit_copies": fit.logits[pick].round(4).tolist(),
    }
    write_text(path, json.dumps(body) + "\n")


def turned(runs: Sequence[KvRun]) -> Array:
    """Orthonormal rows [row, start] whose errors are independent: of each build the sum of its starts over the root of their number, which
    holds what the line misses of it, then contrasts among them, from which that has gone. `rows @ turned(runs)` are starts again.
    """
    from scipy.linalg import helmert

    rows = np.zeros((len(runs), len(runs)))
    filled = 0
    for build in sorted({run.build for run in runs}):
        mine = [i for i, run in enumerate(runs) if run.build == build]
        rows[filled : filled + len(mine), mine] = helmert(len(mine), full=True)
        filled += len(mine)
    return rows


def _columns(runs: Sequence[KvRun]) -> dict[str, Array]:
    """Rows of independent error in GB; `starts` is how many of them share the miss that a row holds, 0 for a contrast."""
    columns = {
        "one": [1.0 for _ in runs],
        "memory": [run.memory_bytes / GB for run in runs],
        "serves": [float(run.server) for run in runs],
        "grouped": [float(run.tp > 1) for run in runs],
        "mlp": [run.mlp_bytes / GB for run in runs],
        "logits": [run.logit_bytes / GB for run in runs],
        "overhead": [run.overhead_bytes / GB for run in runs],
    }
    rows = turned(runs)
    sums = (rows >= 0).all(axis=1)
    return {name: rows @ np.array(values) for name, values in columns.items()} | {"starts": np.where(sums, (rows > 0).sum(axis=1), 0.0)}


def _fit(compiled: Compiled, settings: Settings, runs: Sequence[KvRun]) -> Fit:
    idata = compiled.sample(settings, _columns(runs))
    draws = idata.posterior.stack(sample=("chain", "draw"))
    units = {"fixed": GB, "kept": 1.0, "server": GB, "group": GB, "mlp_copies": 1.0, "logit_copies": 1.0, "scale": GB, "noise": GB}
    found = {name: np.asarray(draws[name].values, dtype=float) * unit for name, unit in units.items()}
    mlp, logits = found.pop("mlp_copies"), found.pop("logit_copies")
    return Fit(**found, mlp=mlp, logits=logits, diagnostics=diagnose(idata))
