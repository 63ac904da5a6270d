"""The floor suite as a job: one table of what the device does at best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hw.artifact import SCHEMA, table, write
from hw.journal import Journal
from hw.suites import floor


def run(job: Any, out: Path, journal: Journal, facts: dict[str, Any]) -> list[Path]:
    import xarray as xr

    rows = floor.measure(job.device)
    journal.add("floor", rows=rows)
    attrs = {"schema": SCHEMA, "suite": "floor", "finished": 1, **facts}
    paths = write(xr.Dataset(table("row", rows, floor.DESCRIBED), attrs=attrs), out / f"{job.stem}.nc", {"row": ""})
    journal.path.unlink(missing_ok=True)
    return paths
