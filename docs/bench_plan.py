"""Time a capacity plan of 200 deployments on two cores: when the first ranked answer is there, and when the search ends.

Five GPUs, one or two per replica, two weight dtypes, two KV dtypes, five batch caps.
"""

import resource
import subprocess
import sys
import time

COMMAND = [
    *(sys.executable, "-m", "simctl", "plan", "--progress", "--workers", "2", "--model", "Llama-3.1-8B"),
    *("--gpu", "H100,H200,A100-80G,L40S,L4", "--tp", "1,2", "--dtype", "bf16,fp8", "--kv-dtype", "bf16,fp8"),
    *("--max-num-seqs", "32,64,128,256,512", "--num-prompts", "300", "--request-rate", "8", "--random-input-len", "1200"),
    *("--random-output-len", "200", "--random-length-cv", "1", "--slo", "ttft:p99<2s tpot:p95<60ms"),
    *("--within", "10m"),
]  # fmt: skip


def main() -> None:
    began = time.perf_counter()
    process = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stdout is not None
    first, raced = None, 0.0
    for line in process.stderr:
        print(f"{time.perf_counter() - began:6.1f} s  {line}", end="", flush=True)
        if first is None and "best so far:" in line and "best so far: none" not in line:
            first = time.perf_counter() - began
        if "trials" in line:
            raced = time.perf_counter() - began
    last = process.stdout.read()
    code = process.wait()
    took = time.perf_counter() - began
    print(last[last.index("=>") :], end="")
    ranked = "no ranked answer" if first is None else f"first ranked answer after {first:.1f} s"
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime
    print(f"plan, 200 deployments: {ranked}, cheapest after {raced:.1f} s, whole answer after {took:.1f} s; {cpu_s:.0f} CPU s")
    sys.exit(0 if code == 1 else code)  # 1: the time was up, which is an answer, too


if __name__ == "__main__":
    main()
