"""Write synthetic engine-grid measurement files, as a measuring machine would."""

import json

import numpy as np
import xarray as xr

from calibrate.steps.grid_cells import INGESTION_S, RUNNER2_S
from calibrate.steps.iterations import make_cells
from calibrate.steps.step_model import log_times
from sim.cost.batch import mixed_batch
from sim.cost.work import iteration_work
from sim.specs.gpus import get_gpu
from sim.specs.models import catalogue_config, get_model
from sim.specs.precision import Precision
from tests.calibrate.steps import TRUE_RATES


def write_grid(path, rng, model="Qwen2.5-7B", sigma=0.01, **changes):
    """A file with decode, prefill and mixed cells whose times are the formula's; `changes` replace attributes."""
    spec, rows = get_model(model), []
    gpu = get_gpu({"NVIDIA H200": "H200", "NVIDIA L4": "L4"}.get(changes.get("gpu_name"), "H100"))
    wanted = [("decode", b, c, 0, 0, 0) for b in (1, 8, 32, 128) for c in (128, 2048, 16384)]
    wanted += [("prefill", 0, 0, 1, n, o) for n in (64, 512, 2048, 8192) for o in (0, 16384)]
    wanted += [("mixed", b, 2048, 1, n, 0) for b in (8, 64) for n in (256, 2048)]
    for kind, batch, context, chunks, tokens, start in wanted:
        shape = mixed_batch(spec, [float(context)] * batch, [(float(tokens), float(start + tokens), True)] * chunks)
        cell = make_cells([iteration_work(spec, shape, Precision(), gpu=gpu)], [1.0], kind=[kind], model=[model], cell=["x"])
        step = float(np.exp(log_times(cell, TRUE_RATES)[0, 0] + sigma * rng.standard_normal()))
        step += chunks * (start + tokens) * (INGESTION_S + RUNNER2_S * spec.second_runner)
        rows.append(
            {
                "label": f"{kind}:{batch}x{context}+{tokens}@{start}",
                "kind": kind,
                "role": "grid",
                "status": "ok",
                "step_s_median": step,
                "step_s_p25": step * 0.999,
                "step_s_p75": step * 1.001,
                "step_s_n": 12,
                "decode_seqs_median": float(batch),
                "decode_context_tokens_median": float(batch * (context + 1)),
                "batch": batch,
                "context_tokens": context,
                "chunks": chunks,
                "chunk_tokens": tokens,
                "offset_tokens": start,
            }
        )
    # rows that must not be learnt from: a failed cell, and a control
    rows.append({**rows[0], "label": "failed", "status": "oom", "step_s_median": np.nan, "step_s_n": 0})
    rows.append({**rows[0], "label": "control", "role": "control", "step_s_median": 9.0})
    data = xr.Dataset(
        {name: ("cell", np.array([row[name] for row in rows], dtype=object if isinstance(rows[0][name], str) else float))
         for name in rows[0]}
    )  # fmt: skip
    attrs = {"schema": "simctl-measurement/1", "suite": "engine-grid", "gpu_name": "NVIDIA H100 80GB HBM3", "model": model,
             "model_config": json.dumps(catalogue_config(model)), "weight_dtype": "bfloat16", "kv_dtype": "bfloat16",
             "engine": "vllm", "engine_version": "0.0", "tensor_parallel_size": 1}  # fmt: skip
    data.attrs = {k: v for k, v in (attrs | changes).items() if v is not None}
    data.to_netcdf(path, engine="h5netcdf")
    return path
