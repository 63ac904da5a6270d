"""Time `simctl what-if --ctx 1M --gpu A10` as a fresh process, five times."""

import statistics
import subprocess
import sys
import time

COMMAND = [sys.executable, "-m", "simctl", "what-if", "--ctx", "1M", "--gpu", "A10"]


def main() -> None:
    walls = []
    for _ in range(6):
        begin = time.perf_counter()
        subprocess.run(COMMAND, check=True, stdout=subprocess.DEVNULL)
        walls.append(time.perf_counter() - begin)
    rest = walls[1:]  # the first run fills the file cache
    print(f"what-if, cold process: median {statistics.median(rest):.2f} s, {min(rest):.2f}-{max(rest):.2f} s over {len(rest)} runs")


if __name__ == "__main__":
    main()
