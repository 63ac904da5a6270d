"""Served logs that options mean, with the deployment they came from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sim.errors import UsageError

if TYPE_CHECKING:
    from calibrate.logs.requests import ServedLog
    from calibrate.served.runs import ServedRun
    from sim import Deployment

DEPLOYMENT = ("model", "gpu", "dtype", "kv_dtype", "tp", "engine", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization",
              "enable_prefix_caching", "max_model_len", "num_gpu_blocks", "engine_version", "kv_offloading_size")  # fmt: skip


def served_by(options: Mapping[str, Any]) -> Deployment | None:
    """The deployment that a log came from; None where the options do not name model and GPU."""
    from sim import Deployment

    if not (options["model"] and options["gpu"]):
        return None
    unsaid = ("max_model_len", "engine_version")  # whose defaults are no None
    return Deployment.of(**{name: options[name] for name in DEPLOYMENT if name not in unsaid or options[name] is not None})


def read_served_log(path: Path, options: Mapping[str, Any]) -> tuple[ServedLog, ServedRun]:
    """(requests, run of its name) of another tool's file, or of a server that was measured by URL. Raises UsageError where it is neither,
    or nothing says what served it.
    """
    from calibrate.logs.read import is_log, measured_log, read_log
    from calibrate.served.runs import read_served

    deployment = served_by(options)
    if not is_log(path):
        run = read_served(path, given=deployment)
        return measured_log(run), run
    if deployment is None:
        raise UsageError(f"{path.name}: a log needs --model and --gpu")
    log = read_log(path, options["timeout"], options["prefix_block"], options["max_concurrency"], options["assume_prefix"])
    return log, log.served_by(deployment, path.stem)
