"""Recompute the published knee study from its own tables, figure by figure, with the deviation beside each.

Identifiers T are those of scenarios/data/reference/checks.md; K are recounts of printed rows (calibrate.knees.recounts). A check whose
closed form misses says so: it is not hidden.
"""

from __future__ import annotations

from collections import Counter
from statistics import median

from calibrate.knees import audit, served, weight_axis
from calibrate.knees.checks import Check
from calibrate.knees.curves import Cell
from calibrate.knees.ranks import factor_errors, spearman
from calibrate.knees.recounts import recounts
from calibrate.knees.weight_axis import Observation, Shape, closed_form, contrasts, observations, right_signs, shapes
from calibrate.reference import table
from sim.knee import closed_form_knee, eta

GIB = 2**30
# The post-hoc fixed cost of checks.md T14: fitted on the same knees it is scored on.
POST_HOC_FIXED_BYTES = 3.7e9
# Figures that the published closed form itself does not meet: measured, the cell of T15 has not crossed by batch 48.
KNOWN_MISSES = frozenset({"T15"})
PAIRS = {
    "qwen 14->32": ("qwen2.5-14b", "qwen2.5-32b"),
    "mistral 7->24": ("mistral-7b", "mistral-24b"),
    "gemma3 4->12": ("gemma3-4b", "gemma3-12b"),
    "gemma3 12->27": ("gemma3-12b", "gemma3-27b"),
    "gemma3 4->27": ("gemma3-4b", "gemma3-27b"),
}


def reproduce() -> list[Check]:
    """All recomputable figures: those of checks.md in its order, then the recounts."""
    return [
        _predicted_ratios(),
        _observed_ratios(),
        _pair_ratios(),
        *_low_fit_rows(),
        _knee_inverts_eta(),
        _served_steps(),
        _audit_counts(),
        *(_family_ranks(f, n) for f, n in (("mistral", "T10"), ("gemma3", "T11"))),
        _run_cost(),
        _zero_parameter_baseline(),
        _post_hoc(),
        _uncrossed_cell(),
        *recounts(),
    ]


def low_fit_cells() -> list[tuple[dict[str, str], Cell]]:
    """The 14 published low-fit rows with the bytes our formulas give them; every GPU is counted as 80 GiB."""
    known, rows = shapes(), table("tr164", "low_fit_curves")
    cells = []
    for row in rows:
        shape, context = known[row["model"]], int(row["context_tokens"])
        weight = shape.params * {"fp16": 2.0, "fp8": 1.0}[row["weight_precision"]]
        label = (row["model"], row["gpu"], row["weight_precision"], context, int(row["decode_tokens"]))
        cells.append((row, Cell(*label, weight, shape.kv_bytes(context), 80 * GIB)))
    return cells


def _predicted_ratios() -> Check:
    predict = closed_form()
    off = [abs(predict(p.large, p.context_tokens) / predict(p.small, p.context_tokens) - p.published_ratio) for p in contrasts()]
    return Check("T01", "17 predicted knee ratios from r = C k / W and (1 + r - tau)/(tau r)", max(off), 5e-4)


def _observed_ratios() -> Check:
    off = [abs(p.knee_large / p.knee_small - p.observed_ratio) for p in contrasts()]
    return Check("T02", "17 observed ratios are knee_large / knee_small", max(off), 1e-4)


def _pair_ratios() -> Check:
    known, off = shapes(), []
    for row in table("tr164", "pair_k_w_ratios"):
        small, large = (known[name] for name in PAIRS[row["pair"]])
        k, w = large.kv_bytes_per_token / small.kv_bytes_per_token, large.params / small.params
        printed = (float(row[c]) for c in ("k_ratio", "w_ratio", "ckw_large_over_small"))
        off += [abs(mine - theirs) for mine, theirs in zip((k, w, k / w), printed, strict=True)]
    return Check("T03", "k, W and Ck/W ratios of five pairs", max(off), 1e-4)


def _low_fit_rows() -> list[Check]:
    knee, ceiling, breach = [], [], []
    for row, cell in low_fit_cells():
        arch = closed_form_knee(cell.kv_bytes / cell.weight_bytes, weight_axis.TAU)
        knee.append(abs(arch / float(row["arch_knee_batch"]) - 1))
        ceiling.append(abs(cell.n_max() / float(row["nmax_vram_batch"]) - 1))
        breach.append(abs(64 / cell.n_max() - float(row["max_batch_over_nmax"])))
    return [
        Check("T04", "closed-form knee of 14 low-fit curves (relative)", max(knee), 5e-3),
        Check("T05", "n_max = (0.9 x 80 GiB - W)/(C k) of 14 low-fit curves (relative)", max(ceiling), 1e-3),
        Check("T06", "64 / n_max of 14 low-fit curves", max(breach), 1e-3),
    ]


def _knee_inverts_eta() -> Check:
    shape = shapes()["qwen2.5-14b"]
    ratios = [shape.ratio(context) for context in (512, 2048, 8192, 32000)]
    off = [abs(eta(closed_form_knee(r, weight_axis.TAU), r) - weight_axis.TAU) for r in ratios]
    return Check("T07", "efficiency at the closed-form knee is tau", max(off), 1e-12)


def _served_steps() -> Check:
    text = next(row["value"] for row in table("tr164", "protocol_constants") if row["key"].startswith("served_conc"))
    rungs = [float(b) for b in text.split(";")]
    off = 0
    for row in table("tr164", "served_cells"):
        knees = {c: float(row[c]) if row[c] else None for c in ("static_knee_n", "sglang_knee_n", "vllm_knee_n")}
        for other in ("static", "vllm"):
            pair = (knees["sglang_knee_n"], knees[f"{other}_knee_n"])
            off += served.ladder_steps(*pair, rungs) != int(row[f"sglang_minus_{other}_steps"])
            off += served.compare(*pair, rungs) != row[f"sglang_vs_{other}"]
    return Check("T08", "served knee steps and directions, 8 cells against static and vLLM", off, 0)


def _audit_counts() -> Check:
    cells = low_fit_cells()
    counts = audit.axis_counts(cell for _, cell in cells)
    labels: Counter[str] = Counter()
    disagree = 0
    for row, cell in cells:
        mine = audit.categories(cell, 64, float(row["fit_r2"]), "non_monotone" in row["categories"])
        disagree += set(mine) != set(row["categories"].split(";"))
        labels.update(mine)
    for row in table("tr164", "failure_audit_counts"):
        if row["group"] in ("category", "axis"):
            disagree += (labels if row["group"] == "category" else counts)[row["item"]] != int(row["count"])
    return Check("T09", "audit categories of 14 rows and their 17 counts", disagree, 0, "non-monotone as printed")


def _family_ranks(family: str, name: str) -> Check:
    rows = [o for o in observations() if o.family == family]
    knees = [o.knee for o in rows]
    mine: dict[str, list[float]] = {
        "Ck/W closed-form": [-o.shape.ratio(o.context_tokens) for o in rows],
        "context only 1/C": [-o.context_tokens for o in rows],
        "KV traffic only 1/(Ck)": [-o.shape.kv_bytes(o.context_tokens) for o in rows],
        "W only": [o.shape.params for o in rows],
    }
    printed = {row["predictor"]: float(row["spearman"]) for row in table("tr164", "family_predictor_spearman") if row["family"] == family}
    off = max(abs(spearman(values, knees) - printed[predictor]) for predictor, values in mine.items())
    return Check(name, f"four Spearman values of {family}, ties by mean rank", off, 1e-4)


def _run_cost() -> Check:
    seconds = {row["run_group"]: float(row["measured_h100_s"]) for row in table("tr164", "run_cost")}
    constants = {row["key"]: row["value"] for row in table("tr164", "protocol_constants")}
    price = float(constants["h100_price"]) / 3600
    total = sum(v for k, v in seconds.items() if k != "total")
    qwen = sum(v for k, v in seconds.items() if k.startswith("qwen"))
    off = (
        abs(total - seconds["total"]),
        abs(total * price - float(constants["cost_total"])),
        abs(qwen * price - float(constants["cost_qwen_only"])),
    )
    return Check("T12", "run seconds and their cost in USD", max(off), 5e-3, f"{total:.1f} s, {total * price:.3f} USD")


def _errors(predict: weight_axis.Predictor, rows: list[Observation]) -> list[float]:
    return sorted(factor_errors([predict(o.shape, o.context_tokens) for o in rows], [o.knee for o in rows]))


def _zero_parameter_baseline() -> Check:
    errors = _errors(closed_form(), observations())
    detail = f"median {median(errors):.4f}, worst {errors[-1]:.4f}, signs {right_signs(closed_form(), contrasts())}/17"
    return Check("T13", "factor error of the closed form on 25 knees", abs(median(errors) - 1.353), 5e-4, detail)


def _post_hoc() -> Check:
    predict = closed_form(sliding=True, fixed_bytes=POST_HOC_FIXED_BYTES)
    errors, signs = _errors(predict, observations()), right_signs(predict, contrasts())
    rho = spearman([predict(o.shape, o.context_tokens) for o in observations()], [o.knee for o in observations()])
    detail = f"post hoc: signs {signs}/17, median {median(errors):.3f}, worst {errors[-1]:.3f}, Spearman {rho:.4f}"
    factor = median(errors) if signs == 17 else float("inf")
    return Check("T14", "sliding window and one fixed cost, all signs right: median factor", factor, 1.10, detail)


def _uncrossed_cell() -> Check:
    shape: Shape = shapes()["qwen2.5-7b"]
    knee = closed_form()(shape, 2048)
    detail = f"closed form crosses at {knee:.1f}; eta(48) {eta(48, shape.ratio(2048)):.3f}, measured 0.766"
    return Check("T15", "Qwen2.5-7B at 2048 has no knee by 48: batches short of it", max(0.0, 48 - knee), 0, detail)
