"""CPU seconds and memory of `simctl simulate` as whole processes: `make bench-sim`; `--plain` without compiled code, and `--only TEXT`.
`--curve` (`make bench-curve`): how they grow with requests, replicas, context and draws.

Llama-3.1-8B on H100s or a fleet file's pool, 512 tokens in and 128 out. `default` is what a user gets who asks for nothing (20 draws,
iteration log, intervals), `lean` the requests alone. Bars are for a machine that takes REFERENCE_S for twenty million integer additions;
times are scaled by that.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

REFERENCE_S = 1.43
ADDITIONS = compile("total = 0\nfor i in range(5_000_000):\n    total += i", "additions", "exec")
COMMAND = f"{sys.executable} -m simctl simulate --random-input-len 512 --random-output-len 128"
H100 = "--gpu H100 --model Llama-3.1-8B"
LEAN = "--draws 0 --no-iterations"
FEW = "--num-prompts 10000 --request-rate"
FOUR = "--num-prompts 100000 --request-rate 80 --replicas 4 --random-prefix-len 256"
DAY = f"--fleet {Path(__file__).parents[1] / 'scenarios/fleets/eight_to_64_l4.yaml'} --rate-curve servegen-day --request-rate 11.57"
EIGHT = "--num-prompts 100000 --request-rate 160 --replicas 8 --random-prefix-len 256 --router"
CASES = (  # what it is, options, bar, bar without compiled code
    ("10,000 at 2/s, default", f"{FEW} 2", 1.5, 4.0),
    ("10,000 at 2/s, lean", f"{FEW} 2 {LEAN}", 0.6, 1.2),
    ("10,000 at 20/s, default", f"{FEW} 20", 1.5, 4.0),
    ("10,000 at 20/s, lean", f"{FEW} 20 {LEAN}", 0.6, 1.2),
    ("100,000 over 4 replicas, prefix, default", FOUR, 4.0, None),
    ("100,000 over 4 replicas, prefix, lean", f"{FOUR} {LEAN}", 1.2, None),
    ("100,000 over 8 replicas, prefix-affinity", f"{EIGHT} prefix-affinity {LEAN}", 1.5, None),
    ("100,000 over 8 replicas, lmetric", f"{EIGHT} lmetric {LEAN}", 1.5, None),
    ("1,000,000 at 20/s, lean", f"--num-prompts 1000000 --request-rate 20 {LEAN}", 4.0, None),
    ("1,000,000 over 64 replicas, lmetric", f"--num-prompts 1000000 --request-rate 1280 --replicas 64 --router lmetric {LEAN}", 3.0, None),
    ("1,000,000 in a day, autoscaled", f"{DAY} --num-prompts 1000000 {LEAN}", 60.0, None),
)
KINDS = (  # of server, lean, 10,000 requests at 20/s: options, bar
    ("dense", "", 0.4),
    ("SGLang", "--engine sglang", 0.8),
    ("sliding window", "--model Gemma-3-12B", 0.8),
    ("n-gram drafts", "--engine-option draft_tokens=3 --engine-option drafter=ngram --engine-option acceptance=0.6", 0.8),
    ("a draft model", "--draft-model Llama-3.2-1B --engine-option draft_tokens=3", 0.8),
    ("eager", "--enforce-eager", 0.8),
    ("LoRA", "--enable-lora --max-loras 4", 0.8),
    ("two pipeline stages", "--pipeline-parallel-size 2", 0.8),
    ("two data-parallel ranks", "--data-parallel-size 2", 0.8),
    ("sparse attention", "--attention blocks:8", 0.8),
    ("llama.cpp", "--engine llamacpp --max-num-seqs 64", 2.0),
    ("host RAM", "--random-prefix-len 256 --kv-offloading-size 8", 0.8),
    ("llm-d's router over 4", "--replicas 4 --router llm-d", 0.8),
    ("disaggregated, 2 + 2", f"--fleet {Path(__file__).parents[1] / 'scenarios/fleets/two_prefill_two_decode.yaml'}", 0.8),
)
CASES += tuple((f"kind: {name}", f"{options} {FEW} 20 {LEAN}", bar, None) for name, options, bar in KINDS)

LOAD = "--request-rate 20 --no-iterations --draws"
CURVES = (  # what grows, options, its values
    ("requests", f"{LOAD} 0 --num-prompts {{0}}", (10_000, 100_000, 1_000_000)),
    ("replicas", f"{LEAN} --router lmetric --num-prompts 200000 --replicas {{0}} --request-rate {{1}}", (1, 4, 16, 64)),
    ("input tokens", f"{LEAN} --num-prompts 20000 --request-rate 0.2 --random-input-len {{0}}", (1_000, 10_000, 100_000)),
    ("draws", f"{LOAD} {{0}} --num-prompts 10000", (20, 80, 320)),
)


def additions_s() -> float:
    """CPU seconds of twenty million integer additions."""
    began = time.process_time()
    for _ in range(4):
        exec(ADDITIONS, {})
    return time.process_time() - began


def measure(options: str, plain: bool) -> tuple[float, float]:
    """(CPU seconds, megabytes) of a process."""
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": ""} | ({"SIMCTL_NO_MACHINE_CODE": "1"} if plain else {})
    served_by = "" if "--fleet" in options else H100
    process = subprocess.Popen(f"{COMMAND} {served_by} {options}".split(), stdout=subprocess.DEVNULL, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"simctl simulate {options}: exit status {os.waitstatus_to_exitcode(status)}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def curves(plain: bool, only: str) -> None:
    """Print CPU seconds at every value, and what each further thousand adds."""
    print(f"{'what grows':14} {'to':>9} {'CPU s':>7} {'MB':>6} {'s a thousand more':>18}")
    for name, options, values in CURVES:
        before = None
        for value in values if only in name else ():
            took, memory = measure(options.format(value, 20 * value), plain)
            more = f"{1000 * (took - before[1]) / (value - before[0]):.3g}" if before else ""
            print(f"{name:14} {value:>9,} {took:7.2f} {memory:6.0f} {more:>18}", flush=True)
            before = value, took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--curve", action="store_true")
    arguments = parser.parse_args()
    if arguments.curve:
        curves(arguments.plain, arguments.only)
        return
    print(f"{'case':42} {'CPU s':>7} {'scaled':>7} {'bar':>5} {'MB':>6}")
    for name, options, bar, plain_bar in CASES:
        if arguments.only not in name:
            continue
        before = additions_s()
        took, memory = measure(options, arguments.plain)
        scaled = took * 2 * REFERENCE_S / (before + additions_s())
        limit = plain_bar if arguments.plain else bar
        verdict = "" if limit is None else "met" if scaled <= limit else "MISSED"
        print(f"{name:42} {took:7.2f} {scaled:7.2f} {limit or '-':>5} {memory:6.0f}  {verdict}", flush=True)


if __name__ == "__main__":
    main()
