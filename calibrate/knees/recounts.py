"""Figures of the published knee study that are counts and sums over its own printed rows."""

from __future__ import annotations

import math

from calibrate.knees import served
from calibrate.knees.checks import Check
from calibrate.knees.weight_axis import Contrast, contrasts
from calibrate.reference import table

Z_95 = 1.959963984540054
SIZES = {"14B->32B broad": "qwen_full", "14B->32B confirm": "qwen_confirm"}


def recounts() -> list[Check]:
    """K01 to K04."""
    return [_successes(), _served_claims(), _curve_counts(), _fit_extremes()]


def wilson(successes: int, trials: int, z: float = Z_95) -> tuple[float, float]:
    """Wilson's interval of a rate."""
    middle = (successes + z * z / 2) / (trials + z * z)
    half = z / (trials + z * z) * math.sqrt(successes * (trials - successes) / trials + z * z / 4)
    return middle - half, middle + half


def _successes() -> Check:
    """A contrast succeeds where the larger model's knee comes later."""
    rows, off = contrasts(), 0
    for row in table("tr164", "family_contrast_success"):
        family, _, which = row["contrast"].partition(" ")
        mine = [c for c in rows if c.family == family and (which == "all pairwise" or _is(c, which))]
        won = sum(c.knee_large > c.knee_small for c in mine)
        off += (won, len(mine)) != (int(row["success"]), int(row["total"]))
    return Check("K01", "larger model later: successes of 7 families and pairs", off, 0)


def _is(c: Contrast, which: str) -> bool:
    sizes, _, run = which.partition(" ")
    pair = f"{c.small.name.rpartition('-')[2]}->{c.large.name.rpartition('-')[2]}"
    return pair.casefold() == sizes.casefold() and (not run or c.run == SIZES[which])


def _served_claims() -> Check:
    text = next(row["value"] for row in table("tr164", "protocol_constants") if row["key"].startswith("served_conc"))
    rungs, cells = [float(b) for b in text.split(";")], table("tr164", "served_cells")

    def steps(row: dict[str, str], other: str) -> int:
        knee, reference = (float(row[c]) if row[c] else None for c in ("sglang_knee_n", f"{other}_knee_n"))
        return served.ladder_steps(knee, reference, rungs)

    distinct = [c for c in cells if c["prompt_regime"] == "distinct"]
    shared = [c for c in cells if c["prompt_regime"] == "shared"]
    vllm = [steps(c, "vllm") for c in cells]
    # a static knee never crossed is no knee to lie within a step of
    near = [c for c in shared if c["static_knee_n"] and abs(steps(c, "static")) <= 1]
    mine = {
        "served knee <= static knee": (sum(steps(c, "static") <= 0 for c in cells), len(cells)),
        "distinct served knee <= static": (sum(steps(c, "static") <= 0 for c in distinct), len(distinct)),
        "shared served knee within one static ladder step": (len(near), len(shared)),
        "equal served knee": (sum(s == 0 for s in vllm), len(vllm)),
        "SGLang lower (earlier)": (sum(s < 0 for s in vllm), len(vllm)),
        "SGLang higher (later)": (sum(s > 0 for s in vllm), len(vllm)),
    }
    claims = {row["claim"]: row for row in table("tr164", "served_claims")}
    off = sum(mine[name] != (int(claims[name]["numerator"]), int(claims[name]["denominator"])) for name in mine)
    bound = claims["distinct upper bound finite-both"]
    low, high = wilson(int(bound["numerator"]), int(bound["denominator"]))
    off += f"[{low:.2f}, {high:.2f}]" not in bound["note"]
    return Check("K02", "six served claims from 8 cells, and the Wilson interval of 21/21", off, 0, f"[{low:.3f}, {high:.3f}]")


def _curve_counts() -> Check:
    rows = {row["table"]: int(row["rows"]) for row in table("tr164", "row_counts")}
    off = sum(int(r["finite_n"]) + int(r["censored_n"]) != rows["static_curves"] for r in table("tr164", "tau_sweep"))
    axes = ("qwen_full_cells", "qwen_confirm_cells", "mistral_matrix_cells", "gemma3_matrix_cells")
    off += sum(rows[name] for name in axes) != rows["cells"]
    off += len(contrasts()) != rows["pair_contrasts"]
    off += len(table("tr164", "served_cells")) != rows["sglang_served_ok_cells"]
    return Check("K03", "curves add up at 5 thresholds; cells of 4 runs, pairs, served cells", off, 0)


def _fit_extremes() -> Check:
    rows, printed = table("tr164", "low_fit_curves"), {r["metric"]: r["value"] for r in table("tr164", "fit_summary")}
    breach = [float(r["max_batch_over_nmax"]) for r in rows if float(r["max_batch_over_nmax"]) > 1]
    off = (
        abs(min(float(r["fit_r2"]) for r in rows) - float(printed["min_fit_r2"])),
        abs(min(breach) - float(printed["vram_breach_ratio_min"])),
        abs(max(breach) - float(printed["vram_breach_ratio_max"])),
    )
    return Check("K04", "lowest R2 and the range of memory breaches over 14 low-fit curves", max(off), 5e-4)
