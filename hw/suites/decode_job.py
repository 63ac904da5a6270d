"""The decode suite as a job: floors, gates, grid, files. Needs a CUDA device and Triton, no engine."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

from hw import provenance
from hw.artifact import write
from hw.engines.shapes import shape
from hw.journal import Journal
from hw.pace import Budget
from hw.suites import decode as suite
from sim.errors import UsageError


def run(job: Any, out: Path, journal: Journal, facts: dict[str, Any]) -> list[Path]:
    if job.device != "cuda":
        raise UsageError("suite decode needs a CUDA device")
    if job.model is None or job.quantization:
        raise UsageError("suite decode needs a model, in bf16")
    config = shape(job.model)
    fields = suite.kernel_shape(config)
    import torch

    from kernels import floors, model_step, reference, reference_model

    def open_step(batch: int, context: int, **how: Any) -> Any:
        gc.collect()  # the step before holds its cache in cycles of graphs
        torch.cuda.empty_cache()
        return model_step.Step(fields, batch, context, seed=job.seed, **how)

    def gate(step: Any, mode: str) -> float:
        step.reset()
        want = reference_model.advance(step, reference_model.history(step), list(range(step.batch)))
        step.run(mode)
        error = reference.relative_error(step.logits, want)
        step.reset()
        return float(error)

    attrs: dict[str, Any] = facts | {
        f"floor_{row['name']}_{row['unit']}": float(row["value"]) for row in floors.measure()  # type: ignore[arg-type]
    }  # fmt: skip
    attrs |= {"model": job.model, "model_config": json.dumps(config), "weight_dtype": "bfloat16", "kv_dtype": "bfloat16"}
    attrs |= {"engine": "own kernels", "path": "cuda graph replay", "seed": job.seed, "weights": "random", "finished": 0}
    try:
        budget = Budget(job.budget_s)
        attrs |= suite.measure(open_step, gate, suite.grid(), journal, budget, job.stem)
        attrs["measuring_s"] = round(budget.spent_s, 1)
        attrs |= provenance.after("cuda")
    finally:
        paths = []
        if journal.records:
            paths = write(suite.dataset(journal.records, attrs), out / f"{job.stem}.nc", {"cell": ""})
            if attrs["finished"]:
                journal.path.unlink(missing_ok=True)
    return paths
