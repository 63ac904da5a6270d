"""KV pools that public start-up lines of engines print, beside the ones that this project computes.

A line says how large a pool is, as bytes for KV (`kv_gib`), as tokens, or as requests of max_model_len. Each is asked twice: tokens from
the bytes that the line says (the layout alone), and tokens from the deployment (memory, too). Versions before 0.21 print tokens of unlike
layers shared out: there, requests times length are compared. Lines marked `fit` are learnt from; odd lines may be, even ones never.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from sim.errors import SimctlError
from sim.files import package_path
from sim.study.deployment import Deployment
from studies.engine_memory import KvRun

GIB = 2.0**30
LINES = "data/reference/kv_pools.csv"


@dataclass(frozen=True)
class Line:
    """A public line: its deployment, what it says (None where it does not), and where it stands."""

    row: int
    deployment: Deployment
    sized: bool  # whether GPU and utilisation are said
    kv_gib: float | None
    weights_gib: float | None
    tokens: float | None
    fit: bool
    source: str

    @property
    def budget(self) -> int:
        return self.deployment.batch_limits()[1]

    def tokens_in(self, free_bytes: float) -> float:
        """Tokens of a pool of so many bytes per GPU, as a new engine prints them."""
        d = self.deployment
        pool = d.pool_in(free_bytes, self.budget)
        if len(d.layout.groups) == 1:
            return float(pool.blocks * d.layout.block_tokens)
        return pool.requests(d.longest) * d.longest

    def by_layout(self) -> float | None:
        """Tokens predicted over tokens printed, from the bytes that the line says."""
        return self.tokens_in(self.kv_gib * GIB) / self.tokens if self.kv_gib and self.tokens else None

    def by_memory(self) -> float | None:
        """Tokens (bytes for KV, where no tokens are said) predicted over printed, from the deployment."""
        if not self.sized:
            return None
        free = self.deployment.memory().free
        if self.tokens:
            return self.tokens_in(free) / self.tokens
        return free / (self.kv_gib * GIB) if self.kv_gib else None


def public_lines() -> list[Line]:
    """The lines of the packaged table. Raises SimctlError for one that no deployment comes from."""
    with package_path("scenarios", LINES).open(encoding="utf-8", newline="") as file:
        return [_line(row) for row in csv.DictReader(file)]


def _line(row: dict[str, str]) -> Line:
    number = int(row["row"])
    whole = {name: int(row[name]) for name in ("max_model_len", "max_num_seqs", "max_num_batched_tokens") if row[name]}
    limits: dict[str, Any] = {"engine": row["engine"], "enforce_eager": row["enforce_eager"] == "yes", **whole}
    if row["version"]:
        limits["engine_version"] = row["version"]
    if row["gpu_memory_utilization"]:
        limits["gpu_memory_utilization"] = float(row["gpu_memory_utilization"])
    if row["prefix_caching"]:
        limits["enable_prefix_caching"] = row["prefix_caching"] == "yes"
    limits["options"] = {"draft_tokens": int(row["draft_tokens"]), "drafter": "mtp"} if row["draft_tokens"] else {}
    if row["language_model_only"]:
        limits["options"]["language_model_only"] = row["language_model_only"] == "yes"
    d = Deployment.of(row["model"], row["gpu"] or "H100", dtype=row["dtype"], kv_dtype=row["kv_dtype"], tp=int(row["tp"]), **limits)
    requests = float(row["concurrency"]) * d.longest if row["concurrency"] and len(d.layout.groups) > 1 else None
    tokens = requests or (float(row["tokens"]) if row["tokens"] else None)
    numbers = [float(row[name]) if row[name] else None for name in ("kv_gib", "weights_gib")]
    sized = bool(row["gpu"] and row["gpu_memory_utilization"])
    if row["fit"] and not number % 2:
        raise SimctlError(f"{LINES}: line {number} is kept for scoring: only odd ones are learnt from")
    return Line(number, d, sized, numbers[0], numbers[1], tokens, bool(row["fit"]), row["source"])


def fitted_starts() -> Iterator[KvRun]:
    """The lines that are learnt from, as engine starts: bytes for KV and, where it says them, bytes of weights are the line's."""
    from sim.deployment.memory import buffers

    for line in public_lines():
        if line.fit and line.kv_gib:
            d, (seqs, budget) = line.deployment, line.deployment.batch_limits()
            weights = line.weights_gib * GIB if line.weights_gib else d.memory().weights
            block, total = d.layout.block_bytes, float(d.gpu.memory_bytes)
            mlp, logits = buffers(d.model, budget, seqs, d.tp)
            left = d.limits.memory_share * total - weights
            blocks = int(line.kv_gib * GIB / block)
            yield KvRun(f"line {line.row}", d.gpu.name, d.model.name, blocks, block, left, mlp, logits, total, d.precision.weights, 1, d.tp)


def scores(lines: list[Line]) -> list[tuple[str, str, int, float, float]]:
    """(question, which lines, n, median absolute error, share within 10 %)."""
    found = []
    for question, ask in (("tokens from bytes", Line.by_layout), ("tokens from the deployment", Line.by_memory)):
        for which, keep in (("odd", 1), ("even", 0)):
            off = [abs(ratio - 1.0) for line in lines if line.row % 2 == keep and (ratio := ask(line)) is not None]
            if off:
                found.append((question, which, len(off), median(off), sum(each <= 0.1 for each in off) / len(off)))
    return found
