"""Served logs that options mean, with the deployment they came from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from calibrate.log_questions import served_log
from calibrate.logs.requests import ServedLog
from calibrate.served.runs import ServedRun

if TYPE_CHECKING:
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


def reading_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of calibrate.logs.read.read_log. Of a log that nothing is learnt from one request is enough."""
    fixed = {"fewest": 1} if any(options.get(name) for name in ("transferred", "overhead", "host")) else {}
    names = {"timeout": "timeout_s", "prefix_block": "block_tokens", "max_concurrency": "clients", "assume_prefix": "assume_prefix"}
    return {argument: options[name] for name, argument in names.items()} | fixed


def read_served_log(path: Path, options: Mapping[str, Any]) -> tuple[ServedLog, ServedRun]:
    """(requests, run of its name) of another tool's file, or of a server that was measured by URL. Raises UsageError where it is neither,
    or nothing says what served it.
    """
    return served_log(path, served_by(options), reading_of(options))
