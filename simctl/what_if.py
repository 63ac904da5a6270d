"""`simctl what-if`: can this GPU serve this context, how fast, and what binds?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from sim.memory import DEFAULT_UTILIZATION
from simctl.options import Fraction, IntList, TokenCount, deployment_options, writable

# Share of device memory an engine takes by default: vLLM's own; SGLang's mem-fraction-static as published in tr164;
# llama.cpp takes what it needs.
ENGINE_MEMORY = {"vllm": DEFAULT_UTILIZATION, "sglang": 0.82, "llamacpp": 0.95}


@click.command("what-if")
@click.option("--ctx", "context", type=TokenCount(), required=True, help="Context length: 8192, 128K, 1M (K = 2**10, M = 2**20).")
@deployment_options
@click.option("--batch", "batches", type=IntList(4096), default="1", show_default=True, help="Batch sizes, comma-separated.")
@click.option("--k", "ks", type=IntList(4096), default="8,16,32", show_default=True, help="Selection budgets in blocks of 128 tokens.")
@click.option("--tau", type=Fraction(), default=0.65, show_default=True, help="Per-request efficiency that defines the batch knee.")
@click.option(
    "--engine",
    type=click.Choice(list(ENGINE_MEMORY)),
    default="vllm",
    show_default=True,
    help=f"Whose default share of device memory applies ({', '.join(f'{share:.2f}' for share in ENGINE_MEMORY.values())}).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON on stdout.")
@click.option("--plot", metavar="FILE", help="Also draw tok/s over context, with intervals, to a PNG or SVG file.")
@click.option("--out", metavar="FILE", help="Also write the step times of every option at every draw (netCDF).")
@click.option("--posterior", type=click.Path(path_type=Path), metavar="FILE", help="Rates from this posterior. [default: the packaged one]")
@click.option("--draws", type=click.IntRange(20, 100_000), default=1000, show_default=True, help="Draws behind the 5-95 % intervals.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the draws: same seed, same answer.")
def command(**options: Any) -> None:
    """Lay out every way to decode a long context on one GPU.

    For dense, sink+window, page-16 and block-128 attention, each with its KV cache in HBM or in host RAM: does it
    fit (with the bytes), step time and tokens per second per sequence with 5-95 % intervals, speed-up over the best
    dense that fits, and the term of the bill that binds. Then the batch knee, how many sequences fit, where sparse
    decode starts to pay, and what is known of its recall.

    \b
    Examples:
      simctl what-if --ctx 1M --gpu A10
      simctl what-if --ctx 128K --gpu H100 --batch 1,8,32 --k 8,32
    """
    from sim.rate_source import rates_for

    question, plot = question_of(options)
    out = writable(options["out"])
    draws, seed = options["draws"], options["seed"]
    rates = rates_for(question.gpu, question.precision, path=options["posterior"], draws=draws, seed=seed, tp=question.tp)
    from sim.whatif import answer

    result = answer(question, rates)
    if out:
        from simctl.draws_file import write_what_if

        write_what_if(out, result, rates, as_dict(result, options)["question"])
    if plot:
        from simctl.plots import plot_what_if

        plot_what_if(question, rates, plot)
    if options["as_json"]:
        click.echo(json.dumps(as_dict(result, options), indent=1))
    else:
        from simctl.what_if_text import render

        render(result)
    for written in filter(None, (out, plot)):
        click.echo(f"wrote {written}", err=True)


def question_of(options: dict[str, Any]) -> tuple[Any, Any]:
    from sim.precision import Precision
    from sim.specs.gpus import get_gpu
    from sim.specs.models import get_model
    from sim.whatif import Question

    question = Question(
        model=get_model(options["model"]),
        gpu=get_gpu(options["gpu"]),
        context=options["context"],
        batches=options["batches"],
        ks=options["ks"],
        precision=Precision(options["dtype"], options["kv_dtype"]),
        tp=options["tp"],
        tau=options["tau"],
        utilization=ENGINE_MEMORY[options["engine"]],
    )
    return question, writable(options["plot"])


def as_dict(result: Any, options: dict[str, Any]) -> dict[str, Any]:
    from dataclasses import asdict

    q = result.question
    return {
        "question": {
            "model": q.model.name,
            "gpu": q.gpu.name,
            "context_tokens": q.context,
            "batches": list(q.batches),
            "k": list(q.ks),
            "dtype": q.precision.weights,
            "kv_dtype": q.precision.kv,
            "tensor_parallel_size": q.tp,
            "tau": q.tau,
            "engine": options["engine"],
            "draws": options["draws"],
            "seed": options["seed"],
        },
        "rates": {"summary": result.rates_summary, "basis": result.rates_basis},
        "memory_bytes": asdict(result.memory) | {"free": result.memory.free},
        "options": [_option(o) for o in result.options],
        "best": {str(batch): _best([o for o in result.options if o.batch == batch]) for batch in q.batches},
        "knee": {"batch": result.knee.batch, "censored": result.knee.censored, "closed_form": _finite(result.knee_closed_form)}
        | {"p05": result.knee_90[0].batch, "p95": result.knee_90[1].batch, "p95_censored": result.knee_90[1].censored},
        "n_max_dense_90": [_finite(n) for n in result.n_max_90],
        "crossover_tokens": [
            {"k": k, "batch": b, "context": c, "p05": result.crossovers_90[k, b][0], "p95": result.crossovers_90[k, b][1]}
            for (k, b), c in result.crossovers.items()
        ],
        "fidelity": result.fidelity,
        "notes": result.notes,
        "recommendation": result.recommendation,
    }


def _option(o: Any) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "policy": o.policy.kind,
        "k": o.policy.k or None,
        "kv_in": o.policy.placement,
        "keep_tokens": _finite(o.policy.keep_tokens),
        "batch": o.batch,
        "feasible": o.feasible,
        "reason": o.reason,
        "hbm_bytes": o.hbm_bytes,
        "host_bytes": o.host_bytes,
        "n_max": _finite(o.n_max),
        "step_s": asdict(o.step_s),
        "step_s_rates_alone": asdict(o.step_s_rates),
        "tokens_per_s_per_sequence": asdict(o.tokens_per_s),
        "tokens_per_s_total": o.tokens_per_s.point * o.batch,
        "speedup_over_best_feasible_dense": asdict(o.speedup) if o.speedup else None,
        "binding_term": o.binding,
        "terms_s": o.terms_s,
    }


def _best(options: list[Any]) -> dict[str, Any] | None:
    """The fastest option that fits and can retrieve from the whole context."""
    able = [o for o in options if o.feasible and o.policy.kind != "sink-window"]
    if not able:
        return None
    o = min(able, key=lambda option: option.step_s.point)
    rate = o.tokens_per_s
    return {"attention": o.policy.label, "tok_s": rate.point, "tok_s_p05": rate.low, "tok_s_p95": rate.high, "binds": o.binding}


def _finite(value: float) -> float | None:
    """JSON has no infinity: null stands for it."""
    return value if value < float("inf") else None
