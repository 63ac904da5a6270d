"""The answer to a what-if question as plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sim.files import plain

if TYPE_CHECKING:
    from sim.closed_form.what_if import Answer, Option


def plain_answer(result: Answer) -> dict[str, Any]:
    """The answer as plain data."""
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
            "pipeline_parallel_size": d.parallel.pp,
            "data_parallel_size": d.parallel.dp,
            "enable_expert_parallel": d.parallel.expert,
            "tau": q.tau,
            "engine": d.limits.engine,
            "max_num_seqs": seqs,
            "max_num_batched_tokens": budget,
            "gpu_memory_utilization": d.limits.memory_share,
            "draws": q.draws,
            "seed": q.seed,
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
    found: dict[str, Any] = plain(answered)
    return found


def _option(o: Option) -> dict[str, Any]:
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
