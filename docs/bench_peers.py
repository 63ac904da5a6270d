"""CPU seconds and memory of simctl and of two other tools on the same questions, as whole processes in turn: `make bench-peers`.

The least of three runs is shown: what others do on the machine only adds.

    python docs/bench_peers.py FOLDER [--only TEXT]     where the peers' programs are, `.venv-peers/bin`

Llama 3.1 8B in bf16 on H100s, under vLLM where not said. `dynamo.replay` (ai-dynamo, Rust) replays the very arrivals and lengths that
simctl does, without its log; its step times are the mocker's own. AIConfigurator computes one steady batch: the work differs.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

RUNS = 3
SIMCTL = [sys.executable, "-m", "simctl"]
LENGTHS = ("--random-input-len", "1200", "--random-output-len", "200")
OF_MODEL = ("--gpu", "H100", "--model", "Llama-3.1-8B")
SIMULATE = ("simulate", *OF_MODEL, "--num-prompts", "400", "--max-concurrency", "16", *LENGTHS)
PLAN = ("plan", *OF_MODEL, "--num-prompts", "400", "--request-rate", "20", *LENGTHS, "--quick")
ANALYTIC = ("--model-path", "meta-llama/Meta-Llama-3.1-8B", "--system", "h100_sxm", "--backend", "vllm", "--isl", "1200", "--osl", "200")
BLOCK, PREFIXES, PROMPT, OUTPUT = 256, 8, 512, 128  # tokens; of a loaded trace
TWO_AND_TWO = ("--fleet", str(Path(__file__).parents[1] / "scenarios" / "fleets" / "two_prefill_two_decode.yaml"))


class Load(NamedTuple):
    """A load of both: requests, requests a second, whether prefixes are shared, simctl's options, and how the peer's replay is called."""

    requests: int
    rate_per_s: float
    shared: bool
    options: tuple[str, ...]
    replay: dict[str, object]


ONE, OF_VLLM = (
    (*OF_MODEL, "--replicas", "1"),
    {"backend": "vllm", "num_gpu_blocks": 26_999, "block_size": 16, "max_num_batched_tokens": 8192},
)
OF_SGLANG = {"backend": "sglang", "num_gpu_blocks": 431_984, "block_size": 1}
LOADS = {
    "10,000 at 2/s": Load(10_000, 2.0, False, ONE, {"engine": OF_VLLM}),
    "10,000 at 20/s": Load(10_000, 20.0, False, ONE, {"engine": OF_VLLM}),
    "100,000 at 20/s": Load(100_000, 20.0, False, ONE, {"engine": OF_VLLM}),
    "100,000 over 4 replicas, shared prefixes": Load(
        100_000, 80.0, True, (*OF_MODEL, "--replicas", "4"), {"engine": OF_VLLM, "replicas": 4}
    ),
    "10,000 over 8 replicas, routed by prefix": Load(
        10_000,
        160.0,
        True,
        (*OF_MODEL, "--replicas", "8", "--router", "prefix-affinity"),
        {"engine": OF_VLLM, "replicas": 8, "router": "kv_router"},
    ),
    "10,000 at 20/s, SGLang": Load(10_000, 20.0, False, (*ONE, "--engine", "sglang"), {"engine": OF_SGLANG}),
    "10,000 over 2 prefill and 2 decode replicas": Load(10_000, 20.0, False, TWO_AND_TWO, {"engine": OF_VLLM, "prefill": 2, "decode": 2}),
}
REPLAY = """
import json, sys
from dynamo.replay import run_trace_replay
trace, block, how = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
def engine(worker):
    return {"engine": {**how["engine"], "worker_type": worker, "max_num_seqs": 1024}}
if "prefill" in how:
    workers = {"prefill_engine_args": engine("prefill"), "decode_engine_args": engine("decode")}
    workers |= {"num_prefill_workers": how["prefill"], "num_decode_workers": how["decode"]}
else:
    workers = {"extra_engine_args": engine("aggregated"), "num_workers": how.get("replicas", 1)}
found = run_trace_replay([trace], router_mode=how.get("router", "round_robin"), trace_block_size=block, **workers).summary
print(json.dumps({name: found[name] for name in ("mean_ttft_ms", "mean_tpot_ms", "p99_itl_ms")}))
"""
FIGURES = {
    "TTFT": r'(?:Mean TTFT \(ms\): +|"mean_ttft_ms": )([\d.]+)',
    "TPOT": r'(?:Mean TPOT \(ms\): +|"mean_tpot_ms": |TPOT: {4,})([\d.]+)',
    "p99 ITL": r'(?:P99 ITL \(ms\): +|"p99_itl_ms": )([\d.]+)',
}


QUIET = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "", "DYN_LOG": "error"}


class Took(NamedTuple):
    """A process: CPU seconds, megabytes at most, and what it printed."""

    cpu_s: float
    megabytes: float
    text: str


def took(command: list[str]) -> Took:
    """Run it. Exits with its last words where it fails."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, env=QUIET, stdout=out, stderr=err)
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
        cpu_s = min(each.cpu_s for each in found)
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
    print(f"{os.cpu_count()} cores, {cpu[1] if cpu else platform.processor()}; the least of {RUNS} runs, one of 100,000 requests")
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
        for number, (name, load) in enumerate(LOADS.items()):
            if arguments.only not in name:
                continue
            trace, times = Path(folder) / f"{number}.jsonl", RUNS if load.requests <= 10_000 else 1
            write_trace(trace, load.requests, load.rate_per_s, load.shared)
            ours = [*SIMCTL, "simulate", *load.options, "--draws", "0", "--trace", str(trace), "--trace-format", "mooncake"]
            ours += ["--workload-option", f"prefix-block={BLOCK}", "--workload-option", "time-unit=ms"]
            peer = [str(arguments.peers / "python"), "-c", REPLAY, str(trace), str(BLOCK), json.dumps(load.replay)]
            compare(name, {"dynamo.replay": peer, "simctl, with ITL": ours, "simctl, without": [*ours, "--no-iterations"]}, times)
        for question, commands in questions.items():
            if arguments.only in question:
                compare(question, commands)


if __name__ == "__main__":
    main()
