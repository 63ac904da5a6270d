"""kernels: every kernel of this project beside the strongest alternatives present, by `kernels.bench`, kept cell by cell.

Protocol (kernels/1). The order, the timing (graph replay over input sets beyond the cache, interleaved, medians) and the float64 gates
before and after each timing are those of `kernels.bench`; here its cells are journalled, so that a cut run goes on where it ended.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from hw.journal import Journal
from hw.pace import Budget

PROTOCOL = "kernels/1"
RESERVE_S = 5.0

Row = dict[str, object]
Work = Iterable[tuple[str, Callable[[], list[Row]]]]


def measure(work: Work, journal: Journal, budget: Budget, name: str, release: Callable[[], None]) -> dict[str, Any]:
    """Run the cells not yet in the journal until done or out of budget. Returns `finished`.

    `work` yields (group, call giving rows) in a fixed order; `release` frees device memory between cells. An out-of-memory or other
    error of one cell is recorded as a row that says so; the sweep goes on.
    """
    left = 0
    for index, (group, call) in enumerate(work):
        key = f"cell {index} {group}"
        if key in journal:
            continue
        if budget.over(RESERVE_S):
            left += 1
            continue
        try:
            rows: list[Row] = call()
        except Exception as failure:  # whatever a device says is kept; KeyboardInterrupt is not caught
            rows = [{"suite": group, "op": group, "variant": "failed", "note": f"{type(failure).__name__}: {failure}"[:200]}]
        journal.add(key, rows=rows)
        del call  # the last one of a group holds its pools
        release()
        print(f"{name}: cell {index + 1}, {budget.spent_s:.0f} s", file=sys.stderr, flush=True)
    return {"finished": int(not left), "cells_not_started": left}


def dataset(rows: list[Row], columns: Mapping[str, tuple[str, str]], attrs: dict[str, Any]) -> Any:
    """Rows as an xarray Dataset along `cell`; `columns` are `kernels.results.COLUMNS`: (units, meaning) by name."""
    import xarray as xr

    from hw.artifact import SCHEMA, table

    described = {name: (meaning, units) for name, (units, meaning) in columns.items()}
    failed = sum(r.get("variant") == "failed" for r in rows)
    return xr.Dataset(
        table("cell", rows, described), attrs={"schema": SCHEMA, "suite": "kernels", "protocol": PROTOCOL, "cells_failed": failed, **attrs}
    )
