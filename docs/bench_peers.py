"""Time simctl and AIConfigurator on the same questions, each command five times as a fresh process: `make bench-peers`.

    python docs/bench_peers.py FOLDER     where the peer's programs are, `.venv-peers/bin`

Llama 3.1 8B in bf16 under vLLM on one H100; prompts of 1,200 tokens, answers of 200.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

RUNS = 5
LENGTHS = ("--random-input-len", "1200", "--random-output-len", "200")
SIMULATE = ("simulate", "--gpu", "H100", "--model", "Llama-3.1-8B", "--num-prompts", "400", "--max-concurrency", "16", *LENGTHS)
PLAN = ("plan", "--gpu", "H100", "--model", "Llama-3.1-8B", "--num-prompts", "400", "--request-rate", "20", *LENGTHS, "--quick")
PEER = ("--model-path", "meta-llama/Meta-Llama-3.1-8B", "--system", "h100_sxm", "--backend", "vllm", "--isl", "1200", "--osl", "200")
TPOT = re.compile(r"TPOT(?: \(ms\))?: {4,}([\d.]+)")


def questions(peers: Path) -> dict[str, dict[str, list[str]]]:
    """Commands by question and tool."""
    simctl, peer = [sys.executable, "-m", "simctl"], [str(peers / "aiconfigurator"), "cli"]
    return {
        "16 clients": {
            "simctl simulate": [*simctl, *SIMULATE],
            "aiconfigurator estimate": [*peer, "estimate", *PEER, "--batch-size", "16"],
        },
        "fewest GPUs for 20 requests/s, TTFT 500 ms, TPOT 30 ms": {
            "simctl plan": [*simctl, *PLAN, "--slo", "ttft:p95<500ms tpot:p95<30ms"],
            "aiconfigurator recommend": [*peer, "recommend", *PEER, "--target-request-rate", "20", "--ttft", "500", "--tpot", "30"],
        },
    }


def timed(command: list[str]) -> tuple[float, str]:
    """Seconds of the command and what it printed."""
    began = time.perf_counter()
    done = subprocess.run(command, env=os.environ | {"HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: exit {done.returncode}: {done.stderr[-500:]}")
    return time.perf_counter() - began, done.stdout


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/bench_peers.py FOLDER")
    for question, commands in questions(Path(sys.argv[1])).items():
        print(f"{question}:")
        for name, command in commands.items():
            runs = [timed(command) for _ in range(RUNS)]
            seconds = [took for took, _ in runs]
            found = TPOT.search(runs[0][1])
            said = f"; mean TPOT {found[1]} ms" if found else ""
            print(f"  {name:28} median {statistics.median(seconds):.2f} s, {min(seconds):.2f}-{max(seconds):.2f} s{said}", flush=True)


if __name__ == "__main__":
    main()
