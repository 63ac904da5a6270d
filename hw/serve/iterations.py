"""What every iteration of a server carried, and when: written down by its scheduler (hw.serve.recording), kept by experiment.

Times are of the machine's clock (s since 1970) while they are written, and count from the beginning of their experiment in the table.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

LOG_ENVIRONMENT = "SIMCTL_ITERATIONS"  # path of the log, as the server's process gets it
TABLE = {
    "experiment_index": ("index into the experiment dimension", "1"),
    "decided_s": ("when the scheduler was asked for it, from the beginning of its experiment", "s"),
    "scheduled_s": ("when it had decided", "s"),
    "collected_s": ("when the engine had its tokens", "s"),
    "decode_seqs": ("sequences computing exactly one token", "1"),
    "decode_context_tokens": ("tokens that those had cached, summed", "tokens"),
    "context_sd_tokens": ("standard deviation of those contexts", "tokens"),
    "chunks": ("all other sequences: tokens computed @ tokens cached", "tokens"),
}


def line(decided_s: float, scheduled_s: float, collected_s: float, work: Iterable[tuple[int, int]]) -> str:
    """One iteration as a line of the log; `work` is (new, cached) tokens of every sequence."""
    contexts, chunks = [], []
    for new, cached in work:
        if new == 1:
            contexts.append(cached)
        else:
            chunks.append(f"{new}@{cached}")
    n, total = len(contexts), sum(contexts)
    apart = math.sqrt(max(n * sum(c * c for c in contexts) - total * total, 0)) / n if n else 0.0
    return f"{decided_s:.6f},{scheduled_s:.6f},{collected_s:.6f},{n},{total},{apart:.3f},{' '.join(chunks)}\n"


def by_experiment(log: Iterable[str], begins_s: Sequence[float]) -> list[list[str]]:
    """Rows of TABLE from the lines of a log and the times at which its experiments began, in any order; what came before the first of them
    is left out, and so is a last line cut short.
    """
    order = sorted(range(len(begins_s)), key=begins_s.__getitem__)
    rows, place = [], -1
    for text in log:
        cells = text.rstrip("\n").split(",")
        if len(cells) != len(TABLE) - 1 or not text.endswith("\n"):
            continue
        decided, *more = map(float, cells[:3])
        while place + 1 < len(order) and begins_s[order[place + 1]] <= decided:
            place += 1
        if place >= 0:
            index = order[place]
            rows.append([str(index), *(f"{t - begins_s[index]:.6f}" for t in (decided, *more)), *cells[3:]])
    return rows


def write_table(rows: Iterable[Sequence[str]], path: Path) -> Path:
    """The rows as compressed CSV; the same rows give the same bytes. A failed write leaves nothing."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(TABLE)
    writer.writerows(rows)
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path
