"""The conclusions of packaged scenarios that name a count or a winner, for many seeds.

    python -m studies.scenario_seeds [--seeds 20] [--cpu-s 600] [NAME ...]

A line a conclusion (so far, at Ctrl-C): for how many of the seeds it was drawn, with figures in brackets left out. Seeds are taken in turn
until the CPU seconds are spent, so that all scenarios have seen as many; a scenario whose runs are long ends before the others.
"""

from __future__ import annotations

import argparse
import re
import resource
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from itertools import product

# the cheapest first: what is left of the budget goes to the dear ones
NAMES = (
    "gpus_for_rag", "cheapest_gpus_for_a_chat_load", "moe_against_dense_per_dollar", "h100s_for_a_chat_load", "two_pools_by_prompt_length",
    "tensor_parallel_or_replicas", "prefill_first_on_a_gb10", "a_lost_node_and_the_tail", "host_ram_for_chat_sessions",
    "routers_for_agent_sessions", "agents_on_eight_h100s",
)  # fmt: skip
OWN_SEEDS = {"prefill_first_on_a_gb10"}  # swept by the scenario itself


def conclusions(name: str, seed: int) -> list[str]:
    """What a scenario concludes, without its figures: names, counts and rates stay."""
    command = [sys.executable, "-m", "simctl", "run", name, *([] if name in OWN_SEEDS else ["--set", f"seed={seed}"])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        return [f"refused: {done.stderr.strip()}"]
    said = " ".join(done.stdout[done.stdout.rindex("=>") :].split()) if "=>" in done.stdout else "nothing"
    said = re.sub(r"\([^()]*\)", "", said)  # intervals and figures beside
    return [re.sub(r"\s+([,.;:])", r"\1", each).strip() for each in said.removeprefix("=>").split(";")]


def spent_s() -> float:
    """CPU seconds of all runs so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Count, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--cpu-s", type=float, default=600.0, help="CPU seconds after which no further seed is begun")
    given = parser.parse_args()
    found: dict[str, Counter[str]] = {name: Counter() for name in given.names}
    seeds, cost = dict.fromkeys(given.names, 0), dict.fromkeys(given.names, 0.0)
    with suppress(KeyboardInterrupt):
        for seed, name in product(range(given.seeds), given.names):
            if (name in OWN_SEEDS and seed) or spent_s() + cost[name] > given.cpu_s:
                continue
            before = spent_s()
            found[name].update(conclusions(name, seed))
            cost[name], seeds[name] = spent_s() - before, seeds[name] + 1
            print(f"{name} {seed} {cost[name]:.0f}", file=sys.stderr, flush=True)
    for name, counted in found.items():
        for said, times in counted.most_common():
            print(f"{name}, {times} of {seeds[name]} seeds: {said}")


if __name__ == "__main__":
    main()
