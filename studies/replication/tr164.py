"""The batch-knee study: knees by weights, served engines, and what its text says of its own tables."""

from __future__ import annotations

from collections import Counter

from sim.closed_form.knee import closed_form_knee, eta
from studies.knees.published import reproduce
from studies.knees.weight_axis import Shape, shapes
from studies.reference_tables import table
from studies.replication import measured, served_knees
from studies.replication.claims import Claim, compared

MEMORY_BYTES = 0.9 * 80 * 2**30  # what the study leaves to an engine
LADDER = ("1", "2", "4", "6", "8", "12", "16", "24", "32", "48", "64", "")  # batches it tried; blank: none short of the end
PRICE_PER_HOUR, COST, COST_OF_QWEN = 3.95, 9.73, 3.87  # USD, as printed
QWEN = ("qwen_smoke", "qwen_full", "qwen_confirm")


def claims() -> list[Claim]:
    """In the order of the list."""
    recomputed = [compared(c.name, c.statement, c.detail or f"off by {c.deviation:.2g}", c.deviation, c.tolerance) for c in reproduce()]
    return sorted(
        [*recomputed, *_curves(), *_identities(), *_of_the_text(), *measured.tr164(), *served_knees.claims()], key=lambda c: c.name
    )


def _curves() -> list[Claim]:
    knees, batches, shares = [], [], []
    for row in table("tr164", "low_fit_curves"):
        shape, context = shapes()[row["model"]], int(row["context_tokens"])
        width = 2.0 if row["weight_precision"] == "fp16" else 1.0
        knees.append(abs(closed_form_knee(shape.ratio(context) / width) / float(row["arch_knee_batch"]) - 1))
        most = (MEMORY_BYTES - shape.params * width) / shape.kv_bytes(context)
        batches.append(abs(most / float(row["nmax_vram_batch"]) - 1))
        shares.append(abs(64 / most - float(row["max_batch_over_nmax"])))
    return [
        compared("T04", f"{len(knees)} closed-form knees", f"off by {max(knees):.2%} at most", max(knees), 5e-3),
        compared("T05", f"{len(batches)} batches that fit 72 GiB", f"off by {max(batches):.3%} at most", max(batches), 1e-3),
        compared("T06", "their share of the largest batch tried", f"off by {max(shares):.2g} at most", max(shares), 1e-3),
    ]


def _identities() -> list[Claim]:
    pairs = table("tr164", "weight_axis_pair_contrasts")
    ratios = [abs(float(p["knee_large_batch"]) / float(p["knee_small_batch"]) - float(p["observed_ratio"])) for p in pairs]
    shape: Shape = shapes()["qwen2.5-14b"]
    ends = [abs(eta(closed_form_knee(shape.ratio(c)), shape.ratio(c)) - 0.65) for c in (512, 2048, 8192, 32000)]
    steps = []
    for cell in table("tr164", "served_cells"):
        static, sglang, vllm = (LADDER.index(cell[f"{of}_knee_n"]) for of in ("static", "sglang", "vllm"))
        steps += [sglang - static - int(cell["sglang_minus_static_steps"]), sglang - vllm - int(cell["sglang_minus_vllm_steps"])]
    counts: Counter[str] = Counter()
    for row in table("tr164", "low_fit_curves"):
        columns = {"gpu": "gpu", "decode": "decode_tokens", "precision": "weight_precision", "context": "context_tokens", "model": "model"}
        counts.update([*row["categories"].split(";"), *(f"{name}={row[column]}" for name, column in columns.items())])
    audit = [r for r in table("tr164", "failure_audit_counts") if r["group"] in ("category", "axis")]
    wrong = [r["item"] for r in audit if counts[r["item"]] != int(r["count"])]
    seconds = {r["run_group"]: float(r["measured_h100_s"]) for r in table("tr164", "run_cost")}
    total = sum(s for name, s in seconds.items() if name != "total")
    cost, qwen = (s / 3600 * PRICE_PER_HOUR for s in (total, sum(seconds[name] for name in QWEN)))
    return [
        compared("T02", f"{len(ratios)} observed knee ratios", f"off by {max(ratios):.1g} at most", max(ratios), 1e-4),
        compared("T07", "eta at the closed-form knee is tau", f"off by {max(ends):.1g} at most", max(ends), 1e-12),
        compared("T08", f"{len(steps)} differences in ladder steps", f"{sum(s != 0 for s in steps)} differ", max(map(abs, steps)), 0),
        compared("T09", f"{len(audit)} counts of low-fit curves", f"{len(wrong)} differ", len(wrong), 0),
        compared(
            "T12",
            f"USD {COST}, {COST_OF_QWEN} of it Qwen's, for {seconds['total']:g} s",
            f"USD {cost:.2f}, {qwen:.2f}, for {total:.1f} s",
            max(abs(cost - COST), abs(qwen - COST_OF_QWEN), abs(total - seconds["total"])),
            5.1e-3,
        ),
    ]


def _of_the_text() -> list[Claim]:
    falling = eta(48, shapes()["qwen2.5-7b"].ratio(2048))
    tail = [r for r in table("tr164", "low_fit_curves") if "tail" in r["categories"]]
    recovering = [r for r in tail if r["recovers_after_crossing"] == "true"]
    cells = table("tr164", "served_cells")
    finite = [r for r in cells if r["static_knee_n"]]
    rows = {r["table"]: int(r["rows"]) for r in table("tr164", "row_counts")}
    served = next((n for name, n in rows.items() if "served" in name), 0)
    return [
        compared(
            "X04",
            "eta is t(B)/t(1), and falls below tau",
            f"t(B)/t(1) is {1 / falling:.2f} where t(1)/t(B) is {falling:.2f}",
            1 / falling - 1,
            0,
        ),
        compared(
            "X05",
            "tail rows are exactly those that recover",
            f"{len(tail)} tail rows, {len(recovering)} recover",
            len(tail) - len(recovering),
            0,
        ),
        compared(
            "X06", "8 of 8 cells, censored ones excluded", f"{len(finite)} of {len(cells)} have a static knee", len(cells) - len(finite), 0
        ),
        compared("X09", f"{len(cells)} served cells", f"{served} served rows by its own count", abs(served - len(cells)), 0),
    ]
