"""Predictions of other tools for served loads, in their own Python: `docs/bench_accuracy.py` runs it and gives it the questions.

    PEERS/python docs/bench_accuracy_peers.py < questions.json

Reads a list of questions, prints a JSON line for each and for each tool: mean TTFT, TPOT and E2EL in ms, and the same of each request
where the tool simulates requests; or why it did not answer. Each tool gets the model's config.json, dtypes, GPUs, the scheduler's limits
and the KV pool where it takes them, and its own defaults for the rest.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import json
import logging
import math
import re
import sys
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

FIGURES = {"ttft": "ttft_ms", "tpot": "tpot_ms", "e2el": "e2e_latency_ms"}
STEPS = 8  # of the search for a steady batch
MESSAGE = 200  # characters
Question = dict[str, Any]
Answer = dict[str, Any]


@cache
def _tables(system: str, backend: str) -> Any:
    """Version of AIConfigurator's newest tables, its default: to look it up takes it a second each time."""
    from aiconfigurator_core.sdk.perf_database import get_latest_database_version

    return get_latest_database_version(system, backend)


def aiconfigurator(q: Question) -> Answer:
    """One steady batch: of as many requests as there are clients, or as are in flight at the offered rate by its own latency (Little)."""
    from aiconfigurator.cli.api import cli_estimate

    if q["replicas"] > 1:
        raise ValueError("one server only")
    options = {name: q[name] for name in ("gemm_quant_mode", "kvcache_quant_mode", "moe_quant_mode") if q[name]}
    if q["experts"]:
        options |= {"moe_tp_size": q["moe_tensor"], "moe_ep_size": q["moe_expert"]}
    batch, found = q["concurrency"] or 1, None
    for _ in range(STEPS):
        found = cli_estimate(
            q["model"],
            q["system"],
            backend_name=q["backend"],
            backend_version=_tables(q["system"], q["backend"]),
            isl=q["isl"],
            osl=q["osl"],
            batch_size=batch,
            tp_size=q["tp"],
            pp_size=q["pp"],
            attention_dp_size=q["dp"],
            **options,
        )
        in_flight = max(1, round(q["rate_per_s"] * found.request_latency / 1e3 / q["dp"])) if not q["concurrency"] else batch
        if in_flight == batch:
            break
        batch = in_flight
    assert found is not None
    return {"ttft": found.ttft, "tpot": found.tpot, "e2el": found.request_latency}


def aisimulate(q: Question) -> Answer:
    """Its engine simulates the requests; step times from its tables of operators."""
    from aisimulate.config.cli import CorePredictionConfig
    from aisimulate.predict import run_prediction
    from aisimulate.stack import resolve_runner_factory
    from aisimulate.sweeper.replay import ReplayOutputRequirements

    parallelism = {"tensor": q["tp"], "pipeline": q["pp"], "attention_data": q["dp"], "replicas": q["replicas"]}
    if q["experts"]:
        parallelism |= {"moe_tensor": q["moe_tensor"], "moe_expert": q["moe_expert"]}
    worker: dict[str, Any] = {
        "parallelism": parallelism,
        "scheduler": {"max_batched_tokens": q["max_num_batched_tokens"], "max_sequences": q["max_num_seqs"]},
    }
    if q["kv_blocks"] and q["backend"] == "vllm":
        worker["kv_cache"] = {"block_size": q["block_size"], "capacity": {"type": "fixed", "blocks": q["kv_blocks"]}}
    engine = {
        "mode": "aggregated",
        "model": q["model"],
        "hardware": q["system"],
        "backend": q["backend"],
        "workers": {"aggregated": worker},
    }
    engine |= {name: q[name] for name in ("gemm_quant_mode", "kvcache_quant_mode", "moe_quant_mode") if q[name]}
    load = {"type": "concurrency", "concurrency": q["concurrency"]} if q["concurrency"] else {"type": "trace_timestamps"}
    source = {"type": "trace", "paths": [q["trace"]], "format": "mooncake", "block_size": q["trace_block"]}
    config = CorePredictionConfig.model_validate({"traffic": {"source": source, "load": load}, "engine": engine})
    wanted = ReplayOutputRequirements(include_raw_report=True, capture_per_request=True)
    found = run_prediction(config, stack="engine", runner_factory=resolve_runner_factory("engine"), output_requirements=wanted)
    return _of_requests(found.native["per_request"], bool(q["concurrency"]))


def dynamo_replay(q: Question) -> Answer:
    """Dynamo's offline replay simulates the requests; step times are its default polynomial, the same of every GPU and model."""
    from dynamo.replay import run_trace_replay

    engine = {"backend": q["backend"], "worker_type": "aggregated", "max_num_seqs": q["max_num_seqs"]}
    if q["backend"] == "vllm":
        engine |= {"block_size": q["block_size"], "max_num_batched_tokens": q["max_num_batched_tokens"]}
        engine |= {"num_gpu_blocks": q["kv_blocks"]} if q["kv_blocks"] else {}
    found = run_trace_replay(
        [q["trace"]],
        extra_engine_args={"engine": engine},
        num_workers=q["replicas"],
        replay_concurrency=q["concurrency"] or None,
        trace_block_size=q["trace_block"],
        capture_per_request=True,
    )
    return _of_requests(found.per_request, bool(q["concurrency"]))


def _of_requests(rows: list[dict[str, Any]], closed: bool) -> Answer:
    """Means, and each request's figures in order of arrival; in a closed loop that order is not the trace's, and only means are kept."""
    rows = sorted(rows, key=lambda row: row["arrival_time_ms"])
    columns = {name: [_figure(row, name) for row in rows] for name in FIGURES}
    means = {}
    for name, values in columns.items():
        finite = [value for value in values if math.isfinite(value)]
        means[name] = sum(finite) / len(finite) if finite else math.nan
    return means | ({} if closed else {"requests": columns})


def _figure(row: dict[str, Any], name: str) -> float:
    """A request's figure, ms; TPOT from the other two, NaN for a request of one token."""
    if name != "tpot":
        return float(row[FIGURES[name]])
    tokens = row["output_length"] - 1
    return float((row["e2e_latency_ms"] - row["ttft_ms"]) / tokens) if tokens else math.nan


PEERS: dict[str, tuple[str, Callable[[Question], Answer]]] = {
    "AIConfigurator": ("aiconfigurator", aiconfigurator),
    "AISimulate": ("aisimulate", aisimulate),
    "Dynamo's offline replay": ("ai-dynamo", dynamo_replay),
}


def answer(ask: Callable[[Question], Answer], question: Question) -> Answer:
    """The tool's answer, or its last words as `refused`; what it prints on the way is dropped."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return ask(question)
    except (Exception, SystemExit) as error:
        return {"refused": f"{type(error).__name__}: {plain(str(error))}"}


def plain(message: str) -> str:
    """The first line of a message, less the paths in it, and not all of it where it is long."""
    return re.sub(r"\(?/\S+", "...", message.split("\n")[0])[:MESSAGE]


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    questions = json.load(sys.stdin)
    for tool, (package, ask) in PEERS.items():
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            print(json.dumps({"tool": tool, "absent": package}), flush=True)
            continue
        for question in questions:
            print(json.dumps({"tool": tool, "version": version, "id": question["id"]} | answer(ask, question)), flush=True)


if __name__ == "__main__":
    main()
