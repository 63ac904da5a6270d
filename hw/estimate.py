"""How long a job will about take, said before it starts."""

from __future__ import annotations

# (seconds to start, seconds of measuring without a budget), as seen with vLLM 0.23.0 on an H100 and an H200, and on two CPU cores
SEEN_S = {
    ("floor", "cuda"): (0, 15),
    ("floor", "cpu"): (0, 5),
    ("kernels", "cuda"): (20, 200),
    ("decode", "cuda"): (15, 90),
    ("engine-grid", "cuda"): (90, 60),
    ("engine-grid", "cpu"): (20, 45),
    ("weight-axis", "cuda"): (50, 15),
    ("weight-axis", "cpu"): (20, 60),
    ("profile", "cuda"): (100, 40),
    ("profile", "cpu"): (20, 30),
    ("duty", "cuda"): (100, 65),
    ("duty", "cpu"): (20, 70),
    ("products", "cuda"): (10, 60),
    ("products", "cpu"): (0, 10),
    ("served", "cuda"): (180, 120),  # two servers: the plan's and the starved one
    ("served", "cpu"): (60, 70),
}


def expected(suite: str, device: str, budget_s: float | None, *, starts: bool = True) -> str:
    """ "about 110 s: 90 to start, 20 measuring" for a suite on "cuda" or "cpu"; `starts` is False where no engine is started."""
    start, measuring = SEEN_S[suite, device]
    start = start if starts else 0
    measuring = min(measuring, round(budget_s)) if budget_s else measuring
    return f"about {start + measuring} s" + (f": {start} to start, {measuring} measuring" if start else "")
