"""The picture of docs/routing.md: requests slower than a time, and the ladder of policies, published and simulated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from studies.reference_tables import table
from studies.replication.routing import BASELINE, SIMULATED

OURS, THEIRS = "C0", "C3"


def draw_study(found: Sequence[dict[str, dict[str, float]]], path: Path) -> None:
    """Counts above each time in the baseline (left), and changes of the TTFT's P90 against it (right), of runs by seed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained", width_ratios=(2, 3))
    rows = [row for row in table("routing", "long_tail_counts") if row["policy"] == BASELINE and row["n_requests_above"] != "0"]
    times = sorted(int(row["ttft_threshold_ms"]) // 1000 for row in rows)
    published = {int(row["ttft_threshold_ms"]) // 1000: int(row["n_requests_above"]) for row in rows}
    runs = np.array([[each["baseline"][f"above_{time}_s"] for time in times] for each in found])
    left.fill_between(times, *np.maximum(np.quantile(runs, [0.05, 0.95], axis=0), 0.5), color=OURS, alpha=0.2, linewidth=0)
    left.plot(times, runs.mean(axis=0), color=OURS, marker="o", label="simulated, 5-95 % of runs")
    left.plot(times, [published[time] for time in times], color=THEIRS, marker="s", linestyle="--", label="published")
    left.set(xscale="log", yscale="log", xlabel="TTFT longer than (s)", ylabel="requests of 1,214")
    left.set_xticks(times, [str(time) for time in times])
    left.minorticks_off()
    left.legend(frameon=False)
    p90 = {row["policy"]: float(row["ttft_p90_ms"]) for row in table("routing", "policy_metrics")}
    names = [name for name in SIMULATED if name != "baseline"]
    for place, name in enumerate(names):
        logs = np.log([each[name]["p90_ttft_ms"] / each["baseline"]["p90_ttft_ms"] for each in found])
        right.plot(100 * np.expm1(np.quantile(logs, [0.05, 0.95])), [place] * 2, color=OURS, linewidth=2)
        right.plot(100 * np.expm1(logs.mean()), place, "o", color=OURS)
        right.plot(100 * (p90[SIMULATED[name]] / p90[BASELINE] - 1), place, "s", color=THEIRS)
    right.axvline(0, color="0.6", linewidth=1)
    right.set_yticks(range(len(names)), [name.replace(", ", ",\n", 1) for name in names])
    right.invert_yaxis()
    right.set_xlabel("change of TTFT p90 against the baseline (%)")
    figure.savefig(path, dpi=110)
    plt.close(figure)
