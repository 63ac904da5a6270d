"""The GB10 report, predicted at the packaged rates, learnt from half of its serving rows: other rows, true decode, schedulers, drafts."""

from __future__ import annotations

import numpy as np
from scipy.stats import binom

from studies.reference_tables import table
from studies.replication.claims import Claim, compared, held
from studies.replication.gb10_bursts import ENGINES, FIGURES, LLAMA, priced, replay, steps, steps_of_head, works
from studies.replication.gb10_runs import PROMPTS, options
from studies.replication.gb10_serving import Half, engine_rates, half

WORDS = {"llama.cpp-paged": "llama.cpp", "vllm": "vLLM", "moe": "MoE", "dense": "dense"}
BENCH_CONTEXT = 168  # tokens: a prompt of 128 and the mean of what is generated between the two lengths
SCHEDULERS = (("55", "dense", "128"), ("56", "moe", "128"), ("56", "dense", "32"), ("59", "moe", "128"))
REPEATS = ("54", "55", "56", "57", "58", "59")  # phases with a default run each
DRAFTS, DRAFT_CONTEXT = 3, 200


def claims() -> list[Claim]:
    """In the order of their names."""
    of = [half(engine, model) for engine in ENGINES for model in ("moe", "dense")]
    rows = [(h, n) for h in of for n in h.unseen]
    found = [_row(f"GP{i:02d}", h, n) for i, (h, n) in enumerate(rows, 1)]
    found.append(_coverage(f"GP{len(rows) + 1}", of))
    found += [_true_decode(f"GP{len(rows) + 2 + i}", h) for i, h in enumerate(of)]
    found += [_scheduler(f"GP{len(rows) + 6 + i}", *key) for i, key in enumerate(SCHEDULERS)]
    return [*found, _drafts(f"GP{len(rows) + 10}")]


def _words(h: Half) -> str:
    return f"{WORDS[h.engine]}, {WORDS[h.model]}"


def _row(name: str, h: Half, clients: int) -> Claim:
    printed, draws = h.unseen[clients]
    mine = np.median(draws, axis=1)
    return held(
        name,
        f"{_words(h)}, {clients} clients: {printed[0]:.0f} tok/s, {printed[1]:.0f} decoding, TTFT {printed[2]:.0f} ms",
        printed,
        draws,
        [f"{mine[0]:.0f} tok/s", f"{mine[1]:.0f}", f"{mine[2]:.0f} ms"],
        f"; learnt from {', '.join(map(str, h.seen))} clients",
        "simulated",
        "tok/s",
    )


def _coverage(name: str, of: list[Half]) -> Claim:
    pairs = [pair for h in of for pair in h.unseen.values()]
    off = np.abs([np.median(draws, axis=1) / printed - 1 for printed, draws in pairs])
    inside = sum(
        int(low <= value <= high)
        for printed, draws in pairs
        for value, low, high in zip(printed, *np.quantile(draws, [0.05, 0.95], axis=1), strict=True)
    )
    least = float(binom.ppf(0.05, off.size, 0.9))
    return compared(
        name,
        f"{off.size} figures of {len(pairs)} rows not learnt from",
        f"{inside} inside 90 % intervals; off by {np.median(off):.1%} in the median, {off.max():.0%} at worst",
        max(least - inside, 0),
        0,
        "simulated",
    )


def _true_decode(name: str, h: Half) -> Claim:
    row = next(r for r in table("gb10", "decode_difference_method") if (r["engine"], r["model"]) == (h.engine, h.model))
    batch, printed = int(row["npl_batch"]), float(row["true_decode_tps"])
    # llama.cpp's bench samples no token: none of a server's cost per sequence
    model = steps(h.engine, h.model)
    pieces = works(model, model.batches_of([BENCH_CONTEXT] * batch, [], range(batch)))
    pieces = [work._replace(sequences=0.0) for work in pieces] if h.engine == LLAMA else pieces
    draws = batch / priced(pieces, h.rates).sum(0, keepdims=True)
    return held(
        name,
        f"{_words(h)}, true decode of {batch}: {printed:g} tok/s",
        np.array([printed]),
        draws,
        [f"{np.median(draws):.0f} tok/s"],
        ", at rates of served rows",
        unit="tok/s",
    )


def _scheduler(name: str, phase: str, model: str, clients: str) -> Claim:
    """One variant against the default of its phase, at the same rates; runs differ as the default runs of the report do."""
    served = [r for r in table("gb10", "serving") if r["engine"] == LLAMA and r["model"] == model]
    default, variant = (
        next(r for r in served if (r["phase"], r["n_concurrent"], r["variant"] == "default") == (phase, clients, plain))
        for plain in (True, False)
    )
    replicates = [r for r in served if r["phase"] in REPEATS and (r["n_concurrent"], r["variant"]) == ("128", "default")]
    repeats = [[float(r[f]) for f in FIGURES] for r in replicates]
    sd = np.std(np.log(repeats), axis=0, ddof=1)[:, None] * np.sqrt(2)
    rates, prompts = half(LLAMA, model).rates, PROMPTS[model, clients]
    plain, changed = (replay(LLAMA, model, int(clients), prompts, options(r["variant"])).figures(rates) for r in (default, variant))
    run = np.exp(sd * np.random.default_rng(0).standard_normal(plain.shape))
    draws, printed = 100 * (changed / plain * run - 1), 100 * np.array([float(variant[f]) / float(default[f]) - 1 for f in FIGURES])
    mine = np.median(draws, axis=1)
    what = (variant["arm"] or variant["variant"]).replace("LLAMA_TTFT_PREFILL_FIRST=1", "prefill first").replace("llama ", "")
    return held(
        name,
        f"{what}, {WORDS[model]}, {clients} clients: tok/s {printed[0]:+.1f} %, decoding {printed[1]:+.1f} %, TTFT {printed[2]:+.1f} %",
        printed,
        draws,
        [f"{v:+.1f} %" for v in mine],
        "",
        "simulated",
        "%",
    )


def _drafts(name: str) -> Claim:
    """Decode rate with drafts over that without: the head proposes client by client, the model verifies all clients in one batch.

    Recorded batches have four rows a client (gb10/mtp_step_shapes.csv), and no graph of a step with drafts was used again.
    """
    rates, head, model = engine_rates(LLAMA), steps_of_head("moe"), steps(LLAMA, "moe")
    accepted = float(next(r["mean_acceptance_len"] for r in table("gb10", "mtp_counters") if r["mean_acceptance_len"]))
    verified = (DRAFTS + 1, DRAFT_CONTEXT + DRAFTS + 1, DRAFTS + 1)
    drafting = DRAFTS * priced(works(head, head.batches_of([DRAFT_CONTEXT], [], [0])), rates).sum(0)
    printed, mine = [], []
    for clients in (8, 32, 128):
        rows = [r for r in table("gb10", "serving") if (r["phase"], r["n_concurrent"]) == ("62", str(clients))]
        printed.append(float(rows[1]["decode_agg_tps"]) / float(rows[0]["decode_agg_tps"]))
        plain = priced(works(model, model.batches_of([DRAFT_CONTEXT] * clients, [], range(clients))), rates).sum(0)
        verifying = priced(works(model, model.batches_of([], [verified] * clients, range(clients))), rates).sum(0)
        mine.append(accepted * plain / (verifying + clients * drafting))
    return held(
        name,
        "drafts decode at " + ", ".join(f"{v:.2f}" for v in printed) + " of the rate without (8, 32, 128 clients)",
        np.array(printed),
        np.array(mine),
        [f"{np.median(v):.2f}" for v in mine],
        ", drafts proposed one client after the other",
        unit="of the rate",
    )
