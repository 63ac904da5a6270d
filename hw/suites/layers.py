"""layers: how long each part of a loaded engine's layers takes by rows: its linear layers as they are quantized, its experts, its logits.

Protocol (layers/1). A part is called as the engine's model calls it, so the kernels are those that the engine chose, and quantizing
activations is in. Calls go through the layers of the model in turn, so that a weight was not read just before. A sample is the mean of a
burst of calls behind a GPU that is kept busy until all of them are queued; a burst that the host queued too slowly is marked late and
not counted. All points are gone through PASSES times, each time in a drawn order. Experts are drawn uniformly for each token.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from hw.artifact import table
from hw.engines import vllm_inprocess
from hw.journal import Journal, attempt
from hw.pace import Budget, seconds_of, summarize, undisturbed

PROTOCOL = "layers/1"
PASSES = 3
ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 264, 384, 512, 768, 1024, 1536, 2048, 2056, 4096, 8192)
BURST = ((64, 12), (512, 6), (2304, 3))  # calls of a burst for rows up to the first number; two above
HOLD = 3.0  # times as long as queueing a burst takes is the GPU kept busy before it
CYCLES = 1_000_000
COLUMNS = {
    "part": ("part of a layer, by the engine's name for it", ""),
    "k": ("columns of its input", "1"),
    "n": ("columns of its output", "1"),
    "kernel": ("class that computes it, as the engine names it", ""),
    "instances": ("layers that were called in turn", "1"),
    "rows": ("rows of its input", "1"),
    "status": ("ok, late, oom or error", ""),
    "error": ("what went wrong", ""),
    "time_s_median": ("median time of a call", "s"),
    "time_s_p25": ("lower quartile", "s"),
    "time_s_p75": ("upper quartile", "s"),
    "time_s_n": ("bursts counted", "1"),
}


def run(job: Any, journal: Journal, attrs: dict[str, Any]) -> None:
    """The engine's start, then every part by rows. One GPU."""
    with vllm_inprocess.running(job, attrs) as engine:
        budget = Budget(job.budget_s)
        rows = [r for r in ROWS if r <= job.max_num_batched_tokens]
        (done,) = engine.llm.collective_rpc(lambda worker: measured(worker, rows, journal, budget, job.seed))
        attrs |= {"finished": int(done), "measuring_s": round(budget.spent_s, 1)}


def parts_of(model: Any, hidden: int) -> list[dict[str, Any]]:
    """The parts of a model: name, sizes and calls, those that are alike but for the number of their layer being one."""
    from vllm.model_executor.layers.linear import LinearBase

    found: dict[tuple[str, int, int], dict[str, Any]] = {}
    for name, module in model.named_modules():
        where = re.search(r"\.(?:layers|h)\.\d+\.(.+)$", name)
        if where is None:
            continue
        part = where[1]
        if isinstance(module, LinearBase):
            k = int(getattr(module, "input_size_per_partition", module.input_size))
            n = int(getattr(module, "output_size_per_partition", module.output_size))
            method = module.quant_method
            kernel = getattr(method, "kernel", None) or getattr(method, "fp8_linear", None) or method
            call = lambda x, module=module: module(x)  # noqa: E731
        elif any(child == "experts" for child, _ in module.named_children()):
            # the block around the experts: router, experts, shared ones
            k = n = hidden
            kernel, call = module, (lambda x, module=module: module(x))
        else:
            continue
        key = (part, k, n)
        entry = found.setdefault(key, {"part": part, "k": k, "n": n, "kernel": type(kernel).__name__, "calls": []})
        entry["calls"].append(call)
    logits = {"part": "logits", "k": hidden, "n": 0, "kernel": "compute_logits", "calls": [model.compute_logits]}
    return [*found.values(), logits]


def measured(worker: Any, rows: Sequence[int], journal: Journal, budget: Budget, seed: int) -> bool:
    """Go through all points of the worker's model until done or out of budget. Returns whether all was measured."""
    import torch
    from vllm.forward_context import set_forward_context

    model = worker.model_runner.model
    model = getattr(model, "unwrap", lambda: model)()
    config = worker.vllm_config
    parts = parts_of(model, config.model_config.get_hidden_size())
    inputs: dict[int, Any] = {}
    points = [(i, r) for i, part in enumerate(parts) for r in rows if part["part"] != "logits" or r <= 512]
    failed: set[int] = set()
    named = [{k: v for k, v in part.items() if k != "calls"} | {"instances": len(part["calls"])} for part in parts]
    journal.add("parts", parts=named, points=points)
    one = min(seconds_of(lambda: torch.cuda._sleep(CYCLES), "cuda") for _ in range(3)) / CYCLES

    def sample(place: int, count: int) -> tuple[float, bool]:
        part = parts[place]
        if part["k"] not in inputs:
            inputs[part["k"]] = torch.randn(max(rows), part["k"], device="cuda", dtype=torch.bfloat16)
        with torch.inference_mode(), set_forward_context(None, config, num_tokens=count):
            return _burst_s(part["calls"], inputs[part["k"]][:count], one)

    with undisturbed():
        for number in range(PASSES):
            for at in np.random.default_rng((seed, number)).permutation(len(points)).tolist():
                if budget.over():
                    return number > 0
                place, count = points[at]
                if place in failed:
                    continue
                found, status, error = attempt(partial(sample, place, count))
                if status != "ok":
                    failed.add(place)
                journal.records.append({"key": f"{number} {at}", "at": at, "found": found, "status": status, "error": error})
    return True


def dataset(records: Sequence[dict[str, Any]], attrs: dict[str, Any]) -> Any:
    """The journal as an xarray Dataset: a table along `point`."""
    import xarray as xr

    head, samples = records[0], records[1:]
    rows = []
    for at, (place, count) in enumerate(head["points"]):
        own = [r for r in samples if r["at"] == at]
        seen = [r["found"][0] for r in own if r["status"] == "ok" and not r["found"][1]]
        bad = next((r for r in own if r["status"] != "ok"), None)
        status = "ok" if seen else bad["status"] if bad else "late" if own else ""
        named = {"rows": count, "status": status, "error": bad["error"] if bad else ""}
        rows.append(head["parts"][place] | named | summarize(seen, "time_s"))
    return xr.Dataset(table("point", rows, COLUMNS), attrs={"protocol": PROTOCOL, **attrs})


def _burst_s(calls: Sequence[Any], x: Any, cycle_s: float) -> tuple[float, bool]:
    """Seconds of one of `calls` in a burst behind a held GPU, and whether the host queued it too late; `cycle_s` is a GPU's cycle."""
    import torch

    burst, queueing = next((n for r, n in BURST if len(x) <= r), 2), []
    for i in range(3):
        begun = time.perf_counter()
        calls[i % len(calls)](x)
        queueing.append(time.perf_counter() - begun)
        torch.cuda.synchronize()
    held_s = HOLD * min(queueing) * (burst + 1)
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begun = time.perf_counter()
    torch.cuda._sleep(int(held_s / cycle_s))
    first.record()
    for i in range(burst):
        calls[(i + 3) % len(calls)](x)
    last.record()
    late = time.perf_counter() - begun > held_s
    last.synchronize()
    return float(first.elapsed_time(last)) * 1e-3 / burst, late
