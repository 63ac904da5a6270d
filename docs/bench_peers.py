"""CPU seconds and memory of simctl and of two other tools on the same questions, as whole processes in turn: `make bench-peers`.

    python docs/bench_peers.py FOLDER [--only TEXT]     where the peers' programs are, `.venv-peers/bin`

Llama 3.1 8B in bf16 under vLLM on H100s. `dynamo.replay` (ai-dynamo, Rust) replays the very arrivals and lengths that simctl does; its step
times are the mocker's own. AIConfigurator computes one steady batch: the work differs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

RUNS = 3
SIMCTL = [sys.executable, "-m", "simctl"]
LENGTHS = ("--random-input-len", "1200", "--random-output-len", "200")
SIMULATE = ("simulate", "--gpu", "H100", "--model", "Llama-3.1-8B", "--num-prompts", "400", "--max-concurrency", "16", *LENGTHS)
PLAN = ("plan", "--gpu", "H100", "--model", "Llama-3.1-8B", "--num-prompts", "400", "--request-rate", "20", *LENGTHS, "--quick")
ANALYTIC = ("--model-path", "meta-llama/Meta-Llama-3.1-8B", "--system", "h100_sxm", "--backend", "vllm", "--isl", "1200", "--osl", "200")
BLOCK, PREFIXES, PROMPT, OUTPUT = 256, 8, 512, 128  # tokens; of a loaded trace
LOADS = {  # requests, requests a second, replicas, router of simctl and of the peer, prefixes shared
    "10,000 at 2/s": (10_000, 2.0, 1, "round-robin", "round_robin", False),
    "10,000 at 20/s": (10_000, 20.0, 1, "round-robin", "round_robin", False),
    "100,000 at 20/s": (100_000, 20.0, 1, "round-robin", "round_robin", False),
    "100,000 over 4 replicas, shared prefixes": (100_000, 80.0, 4, "round-robin", "round_robin", True),
    "10,000 over 8 replicas, routed by prefix": (10_000, 160.0, 8, "prefix-affinity", "kv_router", True),
}
REPLAY = """
import json, sys
from dynamo.mocker import MockEngineArgs
from dynamo.replay import run_trace_replay
trace, replicas, router, block = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
engine = MockEngineArgs(num_gpu_blocks=26_999, block_size=16, max_num_seqs=1024, max_num_batched_tokens=8192)
found = run_trace_replay([trace], extra_engine_args=engine, num_workers=replicas, router_mode=router, trace_block_size=block)
print(json.dumps({name: found[name] for name in ("mean_ttft_ms", "mean_tpot_ms", "p99_itl_ms")}))
"""
FIGURES = {
    "TTFT": r'(?:Mean TTFT \(ms\): +|"mean_ttft_ms": )([\d.]+)',
    "TPOT": r'(?:Mean TPOT \(ms\): +|"mean_tpot_ms": |TPOT: {4,})([\d.]+)',
    "p99 ITL": r'(?:P99 ITL \(ms\): +|"p99_itl_ms": )([\d.]+)',
}


class Took(NamedTuple):
    """A process: CPU seconds, megabytes at most, and what it printed."""

    cpu_s: float
    megabytes: float
    text: str


def took(command: list[str]) -> Took:
    """Run it. Exits with its last words where it fails."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, env=os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": ""}, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0), err.seek(0)
        if process.returncode:
            sys.exit(f"{' '.join(command)}: exit {process.returncode}: {err.read()[-500:]}")
        return Took(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, out.read())


def compare(question: str, commands: dict[str, list[str]], times: int = RUNS) -> None:
    """Each command so many times, in turn, and a line for each: the first is the measure of the others."""
    runs: dict[str, list[Took]] = {name: [] for name in commands}
    for _ in range(times):
        for name, command in commands.items():
            runs[name].append(took(command))
    print(f"{question}:")
    base = 0.0
    for name, found in runs.items():
        cpu_s = statistics.median(each.cpu_s for each in found)
        base = base or cpu_s
        said = [f"{name} {float(match[1]):.4g} ms" for name, figure in FIGURES.items() if (match := re.search(figure, found[0].text))]
        most = max(each.megabytes for each in found)
        print(f"  {name:24} {cpu_s:6.2f} CPU s {cpu_s / base:5.2f}x {most:6.0f} MB  {', '.join(said)}", flush=True)


def write_trace(path: Path, requests: int, rate_per_s: float, shared: bool) -> None:
    """Poisson arrivals as Mooncake's JSONL, times in whole milliseconds; block names say what prompts share."""
    rng, now_s = random.Random(0), 0.0
    with path.open("w") as file:
        for request in range(requests):
            now_s += rng.expovariate(rate_per_s)
            first = [PROMPT * requests + rng.randrange(PREFIXES)] if shared else []
            own = [2 * request + i for i in range(PROMPT // BLOCK - len(first))]
            line = {"timestamp": int(1e3 * now_s), "input_length": PROMPT, "output_length": OUTPUT, "hash_ids": first + own}
            file.write(json.dumps(line) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peers", type=Path)
    parser.add_argument("--only", default="", metavar="TEXT")
    arguments = parser.parse_args()
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) if Path("/proc/cpuinfo").exists() else None
    print(f"{os.cpu_count()} cores, {cpu[1] if cpu else platform.processor()}; median of {RUNS} runs, one of 100,000 requests")
    analytic = [str(arguments.peers / "aiconfigurator"), "cli"]
    questions = {
        "16 clients": {
            "aiconfigurator estimate": [*analytic, "estimate", *ANALYTIC, "--batch-size", "16"],
            "simctl simulate": [*SIMCTL, *SIMULATE],
        },
        "fewest GPUs for 20 requests/s, TTFT 500 ms, TPOT 30 ms": {
            "aiconfigurator recommend": [*analytic, "recommend", *ANALYTIC, "--target-request-rate", "20", "--ttft", "500", "--tpot", "30"],
            "simctl plan": [*SIMCTL, *PLAN, "--slo", "ttft:p95<500ms tpot:p95<30ms"],
        },
    }
    with tempfile.TemporaryDirectory() as folder:
        for number, (load, (requests, rate, replicas, router, peer_router, shared)) in enumerate(LOADS.items()):
            if arguments.only not in load:
                continue
            trace, times = Path(folder) / f"{number}.jsonl", RUNS if requests <= 10_000 else 1
            write_trace(trace, requests, rate, shared)
            ours = [*SIMCTL, "simulate", "--gpu", "H100", "--model", "Llama-3.1-8B", "--trace", str(trace), "--trace-format", "mooncake"]
            ours += [
                "--workload-option",
                f"prefix-block={BLOCK}",
                "--workload-option",
                "time-unit=ms",
                "--replicas",
                str(replicas),
                "--router",
                router,
                "--draws",
                "0",
            ]
            peer = [str(arguments.peers / "python"), "-c", REPLAY, str(trace), str(replicas), peer_router, str(BLOCK)]
            compare(load, {"dynamo.replay": peer, "simctl, with ITL": ours, "simctl, without": [*ours, "--no-iterations"]}, times)
        for question, commands in questions.items():
            if arguments.only in question:
                compare(question, commands)


if __name__ == "__main__":
    main()
