"""CPU and wall seconds of `simctl what-if --ctx 1M --gpu A10` as a fresh process, five times, from bytecode as installed packages run."""

import os
import statistics
import subprocess
import sys
import time

COMMAND = [sys.executable, "-m", "simctl", "what-if", "--ctx", "1M", "--gpu", "A10"]


def main() -> None:
    cpu, walls = [], []
    for _ in range(6):
        began = time.perf_counter()
        process = subprocess.Popen(COMMAND, stdout=subprocess.DEVNULL, env=os.environ | {"PYTHONDONTWRITEBYTECODE": ""})
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            sys.exit(f"exit status {os.waitstatus_to_exitcode(status)}")
        walls.append(time.perf_counter() - began)
        cpu.append(usage.ru_utime + usage.ru_stime)
    # the first run fills the file cache
    for what, found in (("CPU", cpu[1:]), ("wall", walls[1:])):
        most = f"{min(found):.2f}-{max(found):.2f} s over {len(found)} runs"
        print(f"what-if, cold process: median {statistics.median(found):.2f} {what} s, {most}")


if __name__ == "__main__":
    main()
