"""Served batch knees of two engines on an A100, predicted: closed loops on simulated servers that nobody here has measured."""

from __future__ import annotations

from functools import cache
from typing import Any

from sim.study.deployment import Deployment
from sim.study.simulate_question import Simulate
from sim.workload.workload import Workload
from studies.reference_tables import table
from studies.replication.claims import Claim, compared

LADDER = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # clients; the ladder that both engines were served at
TAU, OUTPUT, OWN = 0.65, 64, 16  # the study's threshold and tokens of an answer; tokens that follow a shared prompt
REQUESTS = 6  # a client
ENGINES: dict[str, dict[str, Any]] = {
    "sglang": {"engine": "sglang", "max_num_batched_tokens": 8192, "options": {"cuda_graph_max_bs": 32}},
    "vllm": {"engine": "vllm", "max_num_batched_tokens": 2048},
}
WORDS = {"sglang": "SGLang", "vllm": "vLLM"}
BEYOND = len(LADDER)  # rank of a knee past the last rung


def claims() -> list[Claim]:
    """One a cell and engine, in the order of the table; then the study's two laws and the count."""
    cells = table("tr164", "served_cells")
    found: list[Claim] = []
    off: list[int] = []
    for engine in ENGINES:
        for cell in cells:
            ours, published = _rank(_knee(engine, *_place(cell))), _rank(_number(cell[f"{engine}_knee_n"]))
            off.append(abs(ours - published))
            what = f"{WORDS[engine]}, {cell['model']}, {cell['context_tokens']} tokens, {cell['prompt_regime']} prompts"
            found.append(compared(f"TS{len(found) + 1:02d}", f"{what}: knee {_words(published)}", _words(ours), off[-1], 1, "simulated"))
    exact, near = sum(o == 0 for o in off), sum(o <= 1 for o in off)
    said = f"{exact} of {len(off)} on the rung, {near} within one"
    late = [_rank(_knee("sglang", *_place(c))) > _rank(_knee("vllm", *_place(c))) for c in cells]
    over = [_rank(_knee("sglang", *_place(c))) > _rank(_number(c["static_knee_n"])) for c in cells]
    return [
        *found,
        compared("TS17", "SGLang's knee is later than vLLM's in 0 of 8 cells", f"in {sum(late)}", sum(late), 0, "simulated"),
        compared(
            "TS18", "SGLang's knee is at or before the static one in 8 of 8", f"in {len(over) - sum(over)}", sum(over), 0, "simulated"
        ),
        compared("TS19", f"{len(off)} served knees", said, len(off) - near, 0, "simulated"),
    ]


def efficiency(engine: str, model: str, context: int, shared: bool, clients: int) -> float:
    """Output tokens per second and client of a closed loop, over those of one client: wall time, prompts included. Median rates."""
    return _rate(engine, model, context, shared, clients) / _rate(engine, model, context, shared, 1)


@cache
def _rate(engine: str, model: str, context: int, shared: bool, clients: int) -> float:
    deployment = Deployment.of(model, "A100-80G", max_model_len=16384, max_num_seqs=256, **ENGINES[engine])
    prefix = context - OWN if shared else 0
    load = Workload.drawn(
        REQUESTS * max(clients, 2), input_len=context - prefix, output_len=OUTPUT, prefix_len=prefix, max_concurrency=clients
    )
    run = Simulate(deployment, load, draws=0, keep_iterations=False).answer()
    return float(run.summary["output_throughput"]) / clients


@cache
def _knee(engine: str, model: str, context: int, shared: bool) -> int | None:
    """First rung whose efficiency is below tau; None where the ladder ends before."""
    return next((n for n in LADDER[1:] if efficiency(engine, model, context, shared, n) < TAU), None)


def _place(cell: dict[str, str]) -> tuple[str, int, bool]:
    return cell["model"], int(cell["context_tokens"]), cell["prompt_regime"] == "shared"


def _number(text: str) -> int | None:
    return int(text) if text else None


def _rank(knee: int | None) -> int:
    return BEYOND if knee is None else LADDER.index(knee)


def _words(rank: int) -> str:
    return f"past {LADDER[-1]}" if rank == BEYOND else f"{LADDER[rank]}"
