"""Errors of simctl and of other tools on served loads that were held out, side by side: `make bench-accuracy`.

    python docs/bench_accuracy.py FOLDER [--only TEXT]     where the peers' Python is, `.venv-peers/bin`

The loads are those of scenarios/data/measured/validation, from which simctl learnt no rate and no serving overhead; its intervals of kinds
of deployments are those without the same model. Each tool predicts each load once, on a server that it has not seen. Loads that no
other tool can be told (adapters, eager execution, drafts, block-sparse attention, host RAM, sessions, shared prompts) are counted only.
Nothing that a peer predicts is used anywhere else.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from calibrate.measurement import open_measurement
from calibrate.served.left_out import LEAST_REQUESTS, kind_of_load, kind_of_run, left_out
from calibrate.served.runs import Experiment, ServedRun, read_served

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "scenarios" / "data" / "measured" / "validation"
SYSTEMS = {"H100": "h100_sxm", "H200": "h200_sxm"}
WEIGHTS = {  # as the peers name them; nothing where a config.json says it
    "bfloat16": "bfloat16", "bf16": "bfloat16", "fp8": "fp8", "fp8-block": "fp8_block", "gptq": "int4_wo", "awq": "int4_wo", "mxfp4": "",
}  # fmt: skip
METRICS = ("ttft", "tpot", "e2el")
DRAWS, TRACE_BLOCK = 20, 16
LOADS = {"low": "low rate", "high": "high rate", "closed": "closed loop", "burst": "burst"}
OURS = "simctl"


@dataclass
class Load:
    """One measured load: how it was sent, its means in ms and those of each request; and by tool what was predicted."""

    name: str
    kind: str
    requests: int
    measured: dict[str, float]
    each: dict[str, np.ndarray]
    question: dict[str, Any] = field(default_factory=dict)
    predicted: dict[str, dict[str, Any]] = field(default_factory=dict)


def not_askable(run: ServedRun, load: Experiment, weights: str) -> str:
    """Why no peer is asked for the load; empty where they are."""
    kind = kind_of_run(run)
    if kind in ("eager", "adapters", "drafts"):
        return {"eager": "eager execution", "adapters": "LoRA adapters", "drafts": "speculative decoding"}[kind]
    if run.limits.attention.kind != "dense" or "sparse" in run.name:
        return "block-sparse attention"
    if run.limits.host_kv_bytes or run.limits.kv_offloading_size:
        return "KV in host RAM"
    if load.content or load.kind == "sessions":
        return "sessions and shared prompts"
    return "" if weights in WEIGHTS else f"weights in {weights}"


def question_of(run: ServedRun, load: Experiment, file: dict[str, Any], folder: Path, name: str) -> dict[str, Any]:
    """What the peers are asked: the deployment, and the load as Mooncake's JSONL, its blocks all different."""
    config = json.loads(file["model_config"])
    model = folder / run.model.name
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(config))
    trace = folder / f"{name.replace('/', '_')}.jsonl"
    first, lines = 0, []
    for sent, prompt, output in zip(load.arrival_s - load.arrival_s[0], load.prompt_tokens, load.output_tokens, strict=True):
        blocks = -(-int(prompt) // TRACE_BLOCK)
        line = {"timestamp": 1e3 * float(sent), "input_length": int(prompt), "output_length": int(output)}
        lines.append(json.dumps(line | {"hash_ids": list(range(first, first + blocks))}))
        first += blocks
    trace.write_text("\n".join(lines) + "\n")
    limits, experts = load.limits or run.limits, run.model.expert_params > 0
    gpus = run.tp * run.parallel.dp
    quantised = WEIGHTS[str(file.get("weight_dtype", "bfloat16"))]
    stored = "quantization_config" in config  # the peers read it themselves
    rate = float(load.rate_per_s if np.isfinite(load.rate_per_s) else len(load.arrival_s) / float(np.ptp(load.arrival_s) or 1.0))
    return {
        "id": name,
        "model": str(model),
        "system": SYSTEMS[run.gpu.name],
        "backend": limits.engine,
        "tp": run.tp,
        "pp": run.parallel.pp,
        "dp": run.parallel.dp,
        "replicas": run.replicas,
        "experts": experts,
        "moe_tensor": 1 if run.parallel.expert else gpus,
        "moe_expert": gpus if run.parallel.expert else 1,
        "gemm_quant_mode": "" if stored else quantised,
        "moe_quant_mode": "" if stored or not experts else quantised,
        "kvcache_quant_mode": "fp8" if run.precision.kv == "fp8" else "",
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
        "kv_blocks": limits.num_gpu_blocks,
        "block_size": limits.block_size,
        "trace": str(trace),
        "trace_block": TRACE_BLOCK,
        "concurrency": load.clients if load.kind == "closed" else 0,
        "rate_per_s": rate,
        "isl": round(float(np.mean(load.prompt_tokens))),
        "osl": round(float(np.mean(load.output_tokens))),
    }


def loads_of(path: Path, folder: Path, refused: Counter[str]) -> Iterator[Load]:
    """Loads of a run that the peers can be asked for, predicted by simctl; the others are counted by their reason."""
    run, file = read_served(path), open_measurement(path).attrs
    weights = str(file.get("weight_dtype", "bfloat16"))
    asked: dict[str, Load] = {}
    for load in run.experiments:
        if load.kind == "ladder" or load.replicate or len(load.ttft_s) < LEAST_REQUESTS:
            continue
        if why := not_askable(run, load, weights):
            refused[why] += 1
            continue
        each = {name: 1e3 * getattr(load, f"{name}_s") for name in METRICS}
        name = f"{path.stem} {load.name}"
        found = Load(name, kind_of_load(load, run), len(load.ttft_s), {m: float(np.nanmean(v)) for m, v in each.items()}, each)
        found.question = question_of(run, load, file, folder, name)
        asked[load.name] = found
    if not asked:
        return
    for scored in left_out(run, DRAWS, held_out=True):
        load_found = asked.get(scored.scores[0].experiment)
        if load_found is None or OURS in load_found.predicted:  # of a run over several GPUs the second is without grids of several
            continue
        figures = {each.figure: each for each in scored.figures}
        means = {m: figures[f"mean_{m}_ms"].predicted for m in METRICS}
        inside = {m: figures[f"mean_{m}_ms"].inside for m in METRICS}
        of_requests = {s.metric.removesuffix("_s"): (s.median_abs, s.coverage) for s in scored.scores}
        load_found.predicted[OURS] = means | {"inside": inside, "scores": of_requests}
    yield from asked.values()


def ask_peers(python: Path, loads: list[Load]) -> tuple[dict[str, str], list[str]]:
    """Every peer's answers, put beside the loads. Returns versions by tool, and the packages that are absent."""
    script = str(ROOT / "docs" / "bench_accuracy_peers.py")
    asked = json.dumps([load.question for load in loads])
    done = subprocess.run(
        [str(python), script], input=asked, stdout=subprocess.PIPE, text=True, check=True, env=os.environ | {"HF_HUB_OFFLINE": "1"}
    )
    by_name, versions, absent = {load.name: load for load in loads}, {}, []
    for line in done.stdout.splitlines():
        found = json.loads(line)
        if "absent" in found:
            absent.append(f"{found['tool']}: package {found['absent']} is not installed")
            continue
        versions[found["tool"]] = found["version"]
        by_name[found["id"]].predicted[found["tool"]] = found
    return versions, absent


def errors(loads: Iterable[Load], tool: str) -> dict[str, list[float]]:
    """Relative errors of the means of the loads that the tool answered, by metric."""
    found: dict[str, list[float]] = {m: [] for m in METRICS}
    for load in loads:
        if "refused" in (said := load.predicted[tool]):
            continue
        for m in METRICS:
            found[m].append(abs(said[m] / load.measured[m] - 1))
    return found


def of_requests(load: Load, tool: str, metric: str) -> float:
    """Median relative error of the load's requests; NaN where the tool says nothing of each."""
    said = load.predicted[tool]
    if tool == OURS:
        return float(said["scores"][metric][0])
    if "requests" not in said:
        return float("nan")
    values = np.asarray(said["requests"][metric], dtype=float)
    return float(np.nanmedian(np.abs(values / load.each[metric] - 1))) if len(values) == load.requests else float("nan")


def rows(loads: list[Load], tools: list[str]) -> Iterator[tuple[str, ...]]:
    """A row for each kind of load and tool: loads that all answered; median and 90th percentile of the means' errors; the median of the
    requests' errors; simctl's coverage.
    """
    common = [load for load in loads if all("refused" not in load.predicted[tool] for tool in tools)]
    for kind, label in {"": "all", **LOADS}.items():
        here = [load for load in common if not kind or load.kind == kind]
        if not here:
            continue
        for tool in tools:
            of_means = errors(here, tool)
            each = [np.array([of_requests(load, tool, m) for load in here]) for m in METRICS]
            requests = [f"{100 * np.nanmedian(e):.1f}" if np.isfinite(e).any() else "" for e in each]
            covered = ["" for _ in METRICS]
            if tool == OURS:
                covered = [f"{100 * np.mean([load.predicted[OURS]['inside'][m] for load in here]):.0f}" for m in METRICS]
            middle = [f"{100 * np.median(of_means[m]):.1f}" for m in METRICS]
            worst = [f"{100 * np.quantile(of_means[m], 0.9):.0f}" for m in METRICS]
            yield (f"{label} ({len(here)})", tool, *middle, *worst, " / ".join(requests).strip(" /"), " / ".join(covered).strip(" /"))


def table(loads: list[Load], tools: list[str]) -> str:
    heads = ["load", "tool", "TTFT", "TPOT", "E2EL", "TTFT p90", "TPOT p90", "E2EL p90", "of single requests", "in 90 % interval"]
    lines = [heads, ["---"] * len(heads), *map(list, rows(loads, tools))]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peers", type=Path)
    parser.add_argument("--only", default="", metavar="TEXT", help="runs whose name holds this")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="every load's measured and predicted means")
    arguments = parser.parse_args()
    refused: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        paths = [path for path in sorted(RUNS.glob("*_served_*.nc")) if arguments.only in path.stem]
        loads = [load for path in paths for load in loads_of(path, Path(folder), refused)]
        versions, absent = ask_peers(arguments.peers / "python", loads)
    tools = [OURS, *versions]
    print(f"{len(loads)} loads of {sum(load.requests for load in loads)} requests; {', '.join(f'{n} {v}' for n, v in versions.items())}\n")
    print(table(loads, tools))
    print("\nMeans of loads: median and 90th percentile of relative errors, %. Single requests: the median load's median request.")
    for tool in tools[1:]:
        said = Counter(load.predicted[tool]["refused"] for load in loads if "refused" in load.predicted[tool])
        print(f"{tool} answered {len(loads) - said.total()} of {len(loads)}")
        for why, count in said.most_common():
            print(f"  {count}: {why}")
    print("Loads not asked of any: " + "; ".join(f"{count} {why}" for why, count in refused.most_common()))
    print(*absent, sep="\n")
    if arguments.csv:
        write_csv(arguments.csv, loads, tools)


def write_csv(path: Path, loads: list[Load], tools: list[str]) -> None:
    """Measured and predicted means of every load, ms."""
    lines = ["load,kind,requests,tool," + ",".join(f"{m}_ms" for m in METRICS)]
    for load in loads:
        for tool, said in {"measured": load.measured, **load.predicted}.items():
            if "refused" not in said:
                lines.append(f"{load.name},{load.kind},{load.requests},{tool}," + ",".join(f"{said[m]:.2f}" for m in METRICS))
    path.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
