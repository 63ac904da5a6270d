"""Time `simctl calibrate --hw h100` from packaged data: the first time, compilers' caches empty, and once they are full.

A machine that does other work beside shows in seconds on the clock, hardly in those of processor time, which two cores share.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time

COMMAND = [sys.executable, "-m", "simctl", "calibrate", "--hw", "h100"]


def spent() -> float:
    """Processor seconds of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    printed = []
    with tempfile.TemporaryDirectory() as home:
        empty = os.environ | {"HOME": home, "XDG_CACHE_HOME": home, "NUMBA_CACHE_DIR": f"{home}/numba"}
        empty["PYTENSOR_FLAGS"] = f"base_compiledir={home}/pytensor"
        for what in ("first time", "again"):
            begin, before = time.perf_counter(), spent()
            printed.append(subprocess.run(COMMAND, env=empty, check=True, stdout=subprocess.PIPE, text=True).stdout)
            print(f"calibrate --hw h100, {what}: {time.perf_counter() - begin:.1f} s, processor {spent() - before:.1f} s", flush=True)
    same = "the same" if printed[0] == printed[1] else "NOT the same"
    print(f"both printed {same} digits; load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
