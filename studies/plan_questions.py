"""Ten questions of planners, each answered within the CPU seconds of a plan: decided, or between which counts it lies.

    python -m studies.plan_questions [--commands] [NUMBER ...]

Prints the answer of each in a line or two, with the CPU seconds of all its processes.
"""

from __future__ import annotations

import json
import resource
import shlex
import subprocess
import sys
import textwrap
from typing import NamedTuple

LLAMA = "--model Llama-3.1-8B"
CHAT = "--random-input-len 1000 --random-output-len 250 --random-length-cv 1"
TTFT = "--slo 'ttft:p95<2s tpot:p95<60ms'"


class Question(NamedTuple):
    """A question in words, and the options of `simctl plan` that ask it."""

    words: str
    options: str


QUESTIONS = (
    Question("users who think a minute", f"--gpu H100,L40S {LLAMA} --users 5000 --think-time 60s {CHAT} {TTFT}"),
    Question(
        "agents of up to 128k",
        "--gpu H100,H200 --model Qwen3-Coder-30B-A3B --kv-dtype fp8 --max-model-len 131072 --agent-sessions 100 --request-rate 0.2 "
        "--router unified --slo 'ttft:p90<5s tpot:p90<50ms'",
    ),
    Question(
        "host RAM for chats that come back",
        f"--gpu L40S {LLAMA} --request-rate 1 --turns 8 --think-time 60 --random-input-len 800 --random-output-len 200 "
        "--router prefix-affinity --vary kv-offloading-size=8,64 --slo 'ttft:p95<1s tpot:p95<60ms'",
    ),
    Question(
        "prefill apart from decode",
        f"--gpu H100 {LLAMA} --request-rate 20 --random-input-len 4000 --random-output-len 300 --random-length-cv 1 "
        "--pools one,prefill-decode --slo 'ttft:p95<1s tpot:p95<25ms'",
    ),
    Question("the cheapest card for a chat", f"--gpu H100,A100-80G,L40S,L4 --dtype bf16,fp8 {LLAMA} --request-rate 8 {CHAT} {TTFT}"),
    Question(
        "retrieval prompts of 8,000 tokens",
        f"--gpu H100,H200,L40S --dtype fp8 {LLAMA} --request-rate 2 --random-input-len 8000 --random-output-len 200 "
        "--random-length-cv 0.5 --slo 'ttft:p95<2s tpot:p95<80ms'",
    ),
    Question(
        "a 70B over two or four GPUs",
        "--gpu H100,H200 --model Llama-3.1-70B --dtype fp8 --tp 2,4 --request-rate 3 --random-input-len 2000 --random-output-len 400 "
        "--random-length-cv 1 --slo 'ttft:p95<2s tpot:p95<50ms'",
    ),
    Question(
        "experts or dense at the same load",
        f"--gpu H100,L40S --dtype fp8 --model Qwen3-30B-A3B --request-rate 20 {CHAT} --slo 'ttft:p95<2s tpot:p95<40ms'",
    ),
    Question(
        "short prompts apart from long ones",
        f"--gpu H100,L40S {LLAMA} --request-rate 10 --random-input-len 3000 --random-output-len 200 --random-length-cv 1 "
        "--pools one,split --slo 'ttft:p95<1s tpot:p95<60ms'",
    ),
    Question("a node in reserve", f"--gpu H100 {LLAMA} --request-rate 60 {CHAT} --reserve node --slo 'ttft:p99<1s tpot:p95<40ms'"),
)


def answered(question: Question) -> tuple[str, float]:
    """The conclusion of a plan, and the CPU seconds that it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "simctl", "plan", *shlex.split(question.options), "--quick", "--json", "--no-progress"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stderr)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return str(json.loads(done.stdout)["conclusion"]), seconds


def main() -> None:
    """Answer those that are named by their numbers, or all."""
    words = sys.argv[1:]
    numbers = [int(word) for word in words if word != "--commands"] or range(1, len(QUESTIONS) + 1)
    for number in numbers:
        question = QUESTIONS[number - 1]
        if "--commands" in words:
            print(f"simctl plan {question.options}")
            continue
        conclusion, seconds = answered(question)
        print(textwrap.fill(f"{number}. {question.words} ({seconds:.0f} CPU s): {conclusion}", 100, subsequent_indent="   "), flush=True)


if __name__ == "__main__":
    main()
