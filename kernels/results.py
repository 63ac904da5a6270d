"""Columns of the kernel benchmark's table."""

from __future__ import annotations

Row = dict[str, object]

# Column: (units, what it is). Text columns have no units.
COLUMNS: dict[str, tuple[str, str]] = {
    "suite": ("", "floor (roofline), dense, sparse, gdn, host"),
    "op": ("", "what is computed; rows of equal op, batch, context, k and dtype are comparable"),
    "variant": ("", "which implementation"),
    "dtype": ("", "dtype of cache, operands or state"),
    "batch": ("1", "sequences"),
    "context": ("tokens", "tokens of every sequence in the cache"),
    "k_blocks": ("1", "selected blocks per sequence and KV head, 0 where none are selected"),
    "median": ("s", "median time of a call"),
    "p10": ("s", "10th percentile of the time"),
    "p90": ("s", "90th percentile of the time"),
    "repeats": ("1", "timed repeats"),
    "moved": ("bytes", "bytes the call has to move"),
    "rate": ("bytes s-1", "moved over median"),
    "of_floor": ("1", "share of the roofline: time of those bytes at the bandwidth measured in the same run, over median"),
    "error_before": ("1", "relative error against float64 before timing, NaN where there is no gate"),
    "error_after": ("1", "the same after timing"),
    "error_bound": ("1", "bound both must meet"),
    "note": ("", "anything else, among it why a cell has no time"),
}
TEXT = {name for name in COLUMNS if name in ("suite", "op", "variant", "dtype", "note")}


def row(suite: str, op: str, variant: str, **values: object) -> Row:
    """One row with every column; what is not given is NaN, zero for counts, or empty."""
    unknown = set(values) - set(COLUMNS)
    if unknown:
        raise ValueError(f"values: unknown columns {sorted(unknown)}")
    empty: Row = {name: "" if name in TEXT else float("nan") for name in COLUMNS}
    counts = {"batch": 0, "context": 0, "k_blocks": 0, "repeats": 0}
    return {**empty, **counts, "suite": suite, "op": op, "variant": variant, **values}
