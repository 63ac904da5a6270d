"""A worker process ends when its parent is killed, in the middle of its task."""

import os
import signal
import subprocess
import sys

import pytest

from sim.workers import end_with_parent

PARENT = """
import os, time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from sim.workers import end_with_parent
if __name__ == "__main__":
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=end_with_parent) as pool:
        print(pool.submit(os.getpid).result(), flush=True)
        pool.submit(time.sleep, 600).result()
"""


OF_A_PLAN = """
import os, time
from sim.planning.trials import Runner
if __name__ == "__main__":
    pool = Runner(None, 2)._processes()
    print(pool.submit(os.getpid).result(), flush=True)
    [pool.submit(time.sleep, 600) for _ in range(2)][0].result()
"""
OF_A_SWEEP = """
import os, time
from sim.sweeps.executor import local_pool
if __name__ == "__main__":
    with local_pool(1) as pool:
        print(pool.executor.submit(os.getpid).result(), flush=True)
        pool.executor.submit(time.sleep, 600).result()
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("program", [PARENT, OF_A_PLAN, OF_A_SWEEP], ids=["calibrate", "plan", "sweep"])
def test_a_killed_parent_leaves_no_worker(program, sent, tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(program)
    parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    worker = int(parent.stdout.readline())
    os.kill(parent.pid, sent)
    # the workers hold the other end of their parent's output: that ends when all have
    assert parent.stdout.read() == ""
    parent.stdout.close()
    parent.wait(60)
    assert not _runs(worker)


def test_a_process_without_a_parent_of_its_own_goes_on():
    end_with_parent()


def _runs(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().split(") ")[1][0] != "Z"
    except FileNotFoundError:
        return False
