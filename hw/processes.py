"""Several jobs, each in a process of its own: an engine leaves device memory and threads behind.

The process of the next job is started ahead. It imports its engine, which takes 10 to 20 s, while the engine of the current job starts
and nothing is being timed, then waits for a line on its standard input.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

from hw.engines import vllm_inprocess
from hw.jobs import ENGINE_IN_PROCESS, Job

WRITING_S = 60.0  # an interrupted child ends its server and writes its files


def arguments(job: Job, out: Path, *, resume: bool = False) -> list[str]:
    """The options of the measuring command that do exactly this job."""
    call = ["--hw", job.device, "--suite", job.suite, "-o", str(out), "--seed", str(job.seed)]
    call += ["--max-num-seqs", str(job.max_num_seqs), "--max-num-batched-tokens", str(job.max_num_batched_tokens)]
    call += ["--rates", ",".join(f"{rate:g}" for rate in job.rates)]
    if job.models:
        call += ["--model", ",".join(job.models)]
    if job.model:
        call += ["--model", f"{job.model}:{job.quantization}" if job.quantization else job.model]
    if job.budget_s:
        call += ["--budget", str(job.budget_s)]
    if job.expect_gpu:
        call += ["--expect-gpu", job.expect_gpu]
    if job.experiments:
        call += ["--experiments", ",".join(job.experiments)]
    call += ["--engine", job.engine]
    call += ["--iterations"] if job.iterations else []
    call += ["--label", job.label] if job.label else []
    if job.tensor_parallel > 1:
        call += ["--tp", str(job.tensor_parallel)]
    call += ["--fast-start"] if job.fast_start else []
    call += ["--cells", job.cells] if job.cells else []
    call += ["--label", job.label] if job.label else []
    return call + (["--resume"] if resume else [])


def run_each(jobs: Sequence[Job], out: Path, *, resume: bool = False) -> int:
    """Do the jobs one after the other, whatever becomes of each. Returns the worst exit status.

    Ctrl-C reaches the running child by itself and is raised once that child has written what it has; a termination signal is handed on
    to it, and the jobs after it are not begun.
    """
    worst, current, ahead, ended = 0, None, None, False

    def hand_on(*_: object) -> None:
        nonlocal ended
        ended = True
        if current is not None and current.poll() is None:
            current.terminate()

    before = signal.signal(signal.SIGTERM, hand_on)
    try:
        for job, following in zip_longest(jobs, jobs[1:]):
            current = ahead or _start(job, out, resume)
            _tell(current)
            ahead = _start(following, out, resume) if following else None
            worst = max(worst, abs(current.wait()))
            if ended:
                break
    except KeyboardInterrupt:
        with contextlib.suppress(subprocess.TimeoutExpired):
            if current is not None:
                current.wait(WRITING_S)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        if ahead is not None and ahead.poll() is None:
            ahead.terminate()
            ahead.communicate()
    return worst


def wait_until_told(job: Job) -> bool:
    """In the child: import what the job needs, then wait. False when the parent ended without a word."""
    if job.suite in ENGINE_IN_PROCESS:
        vllm_inprocess.import_engine(job.device)
    return bool(sys.stdin.readline())


def _start(job: Job, out: Path, resume: bool) -> subprocess.Popen[str]:
    call = [sys.executable, "-m", "hw", *arguments(job, out, resume=resume), "--when-told"]
    return subprocess.Popen(call, stdin=subprocess.PIPE, text=True)


def _tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write("go\n")
        process.stdin.close()
    except BrokenPipeError:
        return  # it ended early; its exit status says why
