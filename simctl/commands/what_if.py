"""`simctl what-if`: can this GPU serve this context, how fast, and what binds?"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from sim.errors import UsageError
from sim.files import plain, writable
from simctl.options import BATCHES, FRACTION, TOKENS, deployment_of, deployment_options, limit_options, rate_options

if TYPE_CHECKING:
    from sim import RateDraws
    from sim.closed_form.what_if import Answer, Option


@click.command("what-if")
@click.option("--ctx", "context", type=TOKENS, required=True, help="Context length: 8192, 128K, 1M (K = 2**10, M = 2**20).")
@deployment_options
@limit_options
@click.option("--batch", "batches", type=BATCHES, default="1", show_default=True, help="Batch sizes, comma-separated.")
@click.option("--k", "ks", type=BATCHES, default="8,16,32", show_default=True, help="Selection budgets in blocks of 128 tokens.")
@click.option("--tau", type=FRACTION, default=0.65, show_default=True, help="Per-request efficiency that defines the batch knee.")
@rate_options
@click.option("--draws", type=click.IntRange(20, 100_000), default=1000, show_default=True, help="Draws behind the 5-95 % intervals.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON on stdout.")
@click.option("--plot", metavar="FILE", help="Also draw tok/s over context, with intervals, to a PNG or SVG file.")
@click.option("--out", metavar="FILE", help="Also write the step times of every option at every draw (netCDF).")
def command(**options: Any) -> None:
    """Lay out every way to decode a long context on one GPU.

    For dense, sink+window, page-16 and block-128 attention, each with its KV cache in HBM or in host RAM: does it
    fit (with the bytes), step time and tokens per second per sequence with 5-95 % intervals, speed-up over the best
    dense that fits, and the term of the step time that binds. Then the batch knee, how many sequences fit, where
    sparse decode starts to pay, and what is known of its recall.

    \b
    Examples:
      simctl what-if --ctx 1M --gpu A10
      simctl what-if --ctx 128K --gpu H100 --batch 1,8,32 --k 8,32
    """
    plot, out = writable(options["plot"]), writable(options["out"])
    result = answer(options)
    if out:
        from sim.results.netcdf import write_netcdf

        question = as_dict(result, options)["question"]
        attrs = {name: value if isinstance(value, int | float | str) else str(value) for name, value in question.items()}
        write_netcdf(out, result.to_xarray(**attrs))
    if plot:
        from simctl.plots.figures import plot_what_if

        plot_what_if(result.question, result.rates, plot)
    if options["as_json"]:
        click.echo(json.dumps(as_dict(result, options), indent=1))
    else:
        from simctl.text.what_if_text import render

        render(result)
    for written in filter(None, (out, plot)):
        click.echo(f"wrote {written}", err=True)


def answer(options: Mapping[str, Any], rates: RateDraws | None = None) -> Answer:
    """The answer to the options of the command; at other `rates` than theirs where some are given."""
    from sim import load_rates, what_if

    if isinstance(options["max_num_seqs"], float):
        raise UsageError("--max-num-seqs knee:TAU needs a workload: use simctl simulate")
    deployment = deployment_of(options)
    known = rates or load_rates(deployment, posterior=options["posterior"], draws=options["draws"], seed=options["seed"])
    return what_if(deployment, options["context"], batches=options["batches"], ks=options["ks"], tau=options["tau"], rates=known)


def json_answer(options: Mapping[str, Any]) -> dict[str, Any]:
    """What --json prints."""
    return as_dict(answer(options), options)


def as_dict(result: Answer, options: Mapping[str, Any]) -> dict[str, Any]:
    """The answer as plain data."""
    from dataclasses import asdict

    q, d = result.question, result.question.deployment
    seqs, budget = d.batch_limits()
    answered = {
        "question": {
            "model": d.model.name,
            "gpu": d.gpu.name,
            "context_tokens": q.context,
            "batches": list(q.batches),
            "k": list(q.ks),
            "dtype": d.precision.weights,
            "kv_dtype": d.precision.kv,
            "tensor_parallel_size": d.tp,
            "tau": q.tau,
            "engine": d.limits.engine,
            "max_num_seqs": seqs,
            "max_num_batched_tokens": budget,
            "gpu_memory_utilization": d.limits.memory_share,
            "draws": options["draws"],
            "seed": options["seed"],
        },
        "rates": {"summary": result.rates.summary, "source": result.rates.source.to_json(), "basis": result.rates.basis},
        "memory_bytes": asdict(result.memory) | {"free": result.memory.free},
        "options": [_option(o) for o in result.options],
        "best": {str(batch): _best([o for o in result.options if o.batch == batch]) for batch in q.batches},
        "knee": {"batch": result.knee.batch, "censored": result.knee.censored, "closed_form": result.knee_closed_form}
        | {"p05": result.knee_90[0].batch, "p95": result.knee_90[1].batch, "p95_censored": result.knee_90[1].censored},
        "n_max_dense_90": list(result.n_max_90),
        "crossover_tokens": [
            {"k": k, "batch": b, "context": c, "p05": result.crossovers_90[k, b][0], "p95": result.crossovers_90[k, b][1]}
            for (k, b), c in result.crossovers.items()
        ],
        "fidelity": result.fidelity,
        "notes": result.notes,
        "recommendation": result.recommendation,
    }
    return plain(answered)  # type: ignore[no-any-return]


def _option(o: Option) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "policy": o.policy.kind,
        "k": o.policy.k or None,
        "kv_in": o.policy.placement,
        "keep_tokens": o.policy.keep_tokens,
        "batch": o.batch,
        "feasible": o.feasible,
        "reason": o.reason,
        "hbm_bytes": o.hbm_bytes,
        "host_bytes": o.host_bytes,
        "n_max": o.n_max,
        "step_s": asdict(o.step_s),
        "step_s_rates_only": asdict(o.step_s_rates),
        "tokens_per_s_per_sequence": asdict(o.tokens_per_s),
        "tokens_per_s_total": o.tokens_per_s.point * o.batch,
        "speedup_over_best_feasible_dense": asdict(o.speedup) if o.speedup else None,
        "binding_term": o.binding,
        "terms_s": o.terms_s,
    }


def _best(options: list[Option]) -> dict[str, Any] | None:
    """The fastest option that fits and can retrieve from the whole context."""
    able = [o for o in options if o.feasible and o.policy.kind != "sink-window"]
    if not able:
        return None
    o = min(able, key=lambda option: option.step_s.point)
    rate = o.tokens_per_s
    return {"attention": o.policy.label, "tok_s": rate.point, "tok_s_p05": rate.low, "tok_s_p95": rate.high, "binds": o.binding}
