"""SIGTERM and Ctrl-C at drawn moments: one line, 143 or 130, and of what was to be written all or nothing."""

import random
import signal
import subprocess
import sys
import time

import pytest

SERVED = ("--gpu", "H100", "--model", "Llama-3.1-8B", "--num-prompts", "200000", "--request-rate", "15")
COMMANDS = {
    "simulate": ("simulate", *SERVED, "--out", "{}"),
    "sweep": ("sweep", "latency_against_rate", "-o", "{}.zarr", "--workers", "2"),
    "plan": ("plan", "--gpu", "H100,H200,L40S", "--model", "Llama-3.1-8B", "--request-rate", "400", "--slo", "ttft:p99<500ms"),
}


@pytest.mark.parametrize(("sign", "code", "says"), [("SIGTERM", 143, "terminated"), ("SIGINT", 130, "interrupted")])
@pytest.mark.parametrize("name", COMMANDS)
def test_it_ends_in_one_line(tmp_path, name, sign, code, says):
    command = [sys.executable, "-m", "simctl", *(each.format(tmp_path / "out") for each in COMMANDS[name])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(1.5 + random.Random(f"{name} {sign}").random())
    process.send_signal(getattr(signal, sign))
    _, err = process.communicate(timeout=120)
    said = [line for line in err.splitlines() if line.strip() and "\r" not in line]
    assert process.returncode == code, err
    assert "Traceback" not in err
    # a sweep says where it goes on, a plan what is known
    assert said == [f"simctl: {says}"] or (name == "sweep" and len(said) == 1) or name == "plan", err
    left = {file.name for file in tmp_path.iterdir()}
    assert left <= {"out.zarr"}  # a sweep goes on there


@pytest.mark.parametrize(
    ("limits", "code", "says"),
    [(("--timeout", "2"), 124, "simctl: no answer within 2 s"), (("--max-memory", "0.15"), 1, "simctl: not enough memory")],
    ids=["time", "memory"],
)
def test_a_question_is_bounded(tmp_path, limits, code, says):
    command = [sys.executable, "-m", "simctl", *limits, "simulate", *SERVED, "--num-prompts", "300000", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr.strip().splitlines()[-1]) == (code, says)
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
