"""Report of a regime map: where sparse decode beats dense, over context and batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sim.units import format_tokens
from simctl.report import charts
from simctl.report.page import Headline, Picture, ReportPart, cut, number, span

MOST_CELLS = 40  # in a row or a column


def part_of(found: Mapping[str, Any]) -> ReportPart:
    """The report of what `simctl what-if --map` prints with --json. Raises KeyError, TypeError or ValueError for anything else."""
    contexts, batches = found["context_tokens"][:MOST_CELLS], found["batch"][:MOST_CELLS]
    unsure = 0
    rows: list[charts.Row] = []
    for i, context in enumerate(contexts):
        for j, batch in enumerate(batches):
            value, low, high = (float(found[name][i][j]) for name in ("speedup", "speedup_p05", "speedup_p95"))
            fits = bool(found["dense_fits"][i][j] and found["sparse_fits"][i][j])
            unsure += low < 1 < high
            mark = ("?" if low < 1 < high else "") + ("" if fits else "!")
            rows.append({"column": format_tokens(int(context)), "row": str(int(batch)), "y": value, "share": min(0.5, abs(value - 1)),
                         "text": f"{value:.2f}{mark}", "low": low, "high": high})  # fmt: skip
    best = max(rows, key=lambda row: row["y"])
    wins = sum(row["y"] > 1 for row in rows)
    reading = (
        f"Sparse decode wins in {wins} of {len(rows)} cells, by up to {number(best['y'])} times at {best['column']} and batch "
        f"{best['row']} (blue: it wins; orange: dense does; ?: its 90 % interval includes 1; !: the cache does not fit)."
    )
    tooltip = (("text", "speed-up"), ("low", "5 % of draws"), ("high", "95 % of draws"))
    spec = charts.table_of_cells(rows, "context (tokens)", "batch (sequences)", tooltip)
    table = [[row["column"], row["row"], row["text"], span(row["low"], row["high"])] for row in rows]
    subject = f"{cut(found['model'], 60)} on {cut(found['gpu'], 40)}"
    return ReportPart(
        f"Regime map: {subject}",
        f"Where is attention over {int(found['k'])} selected blocks faster than dense attention?",
        [("KV cache in", cut(found["kv_in"]))],
        [
            Headline("Largest speed-up", f"{number(best['y'])} x", (("rates", span(best["low"], best["high"])),)),
            Headline("Cells where it wins", f"{wins} of {len(rows)}"),
            Headline("Cells that the rates leave open", str(unsure)),
        ],
        [f"Rates: {cut(found['rates'], 600)}."],
        [Picture("regime", "Where does sparse decode beat dense?", reading, spec, ("context", "batch", "speed-up", "90 %"), table)],
    )
