"""A plan's winner as files that start it: `vllm serve` commands, docker compose, Kubernetes, KServe, llm-d, Dynamo, Ray Serve LLM."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sim.errors import UsageError
from sim.planning.servers import SIXTEEN, Server, serve_arguments

if TYPE_CHECKING:
    from sim.planning.choices import Choice
    from sim.planning.race import RaceResult
    from sim.study.fleet_spec import PoolSpec

COMMENT = 100  # columns


def check_emits(choices: Sequence[Choice]) -> None:
    """Raises UsageError for choices that no vLLM can be started as."""
    for choice in choices:
        for pool in choice.study.whole_fleet.pools:
            serve_arguments(pool)


def emitted(plan: RaceResult, kind: str, answer: str) -> str:
    """Launch file of the winner, or of the best count so far, marked so; the answer above it as comments. UsageError where there is none,
    and for what the format cannot say.
    """
    import textwrap

    from sim.planning.emitters import KINDS

    if plan.best is None:
        raise UsageError("--emit: no count was tried often enough to be started")
    choice = plan.choices[plan.best.choice]
    pools = choice.study_of(plan.best.replicas).whole_fleet.pools
    counts = choice.replicas(plan.best.replicas)
    spot = sum(n for n, part in zip(counts, choice.parts, strict=True) if part.losses)
    counts = counts if len(pools) > 1 else [sum(counts)]
    servers = [
        Server(pool.name if choice.study.fleet else "vllm", pool.role, n, pool.deployment, serve_arguments(pool), pool.max_prompt_tokens)
        for pool, n in zip(pools, counts, strict=True)
    ]
    body, said = KINDS[kind](servers)
    undecided = [] if plan.winner else ["UNDECIDED: the plan ended before it was certain that this meets the SLO."]
    notes = [*undecided, answer.removeprefix("=> "), *_notes(pools), *said]
    notes += [f"{spot} replicas are for spot capacity: nothing here puts them there."] if spot else []
    lines = [line for note in notes for line in textwrap.wrap(note, COMMENT, initial_indent="# ", subsequent_indent="# ")]
    return "".join(f"{line}\n" for line in lines) + body


def _notes(pools: Sequence[PoolSpec]) -> list[str]:
    """Notes on the plan that no format can hold."""
    d = pools[0].deployment
    notes = []
    if pools[0].max_prompt_tokens is not None:
        notes.append(f"The front door sends prompts of up to {pools[0].max_prompt_tokens} tokens to the first pool, others to the second.")
    if any(pool.deployment.model.checkpoint is None and pool.deployment.precision.weights not in (*SIXTEEN, "fp8") for pool in pools):
        notes.append(f"Weights in {d.precision.weights}: name a checkpoint that has them.")
    if d.router_options:
        notes.append(
            f"The plan's router has options of its own: {', '.join(f'{name}={value}' for name, value in d.router_options.items())}."
        )
    if d.limits.lora is not None:
        notes.append("Adapters: add --lora-modules NAME=PATH for each, and put its files there.")
    if d.model.source and not re.search(r"[\w.-]+/[\w.-]+ on Hugging Face", d.model.source):
        notes.append(f"The plan's model is {d.model.source}: put its repository in the place of {d.model.name}.")
    return notes
