"""Write tests/engine/data/radix_sglang_*.json: random operations and what SGLang's radix cache gives for them.

`python -m tests.engine.record_radix_ops` where the engine package is installed (`make test-sglang` installs it).
"""

from __future__ import annotations

import json
from importlib.metadata import version
from pathlib import Path

import numpy as np

from tests.engine.sglang_oracle import Op, steps_of_engine

CASES, OPERATIONS = 30, 60


def operations(rng: np.random.Generator) -> list[Op]:
    """Mostly prefixes of eight texts over three pages, so that they meet, part and are evicted."""
    texts = [rng.integers(0, 3, rng.integers(1, 10)).tolist() for _ in range(8)]
    found: list[Op] = []
    for name in rng.choice(["match", "insert", "lock", "unlock", "evict"], OPERATIONS, p=[0.15, 0.35, 0.15, 0.15, 0.2]).tolist():
        if name in ("unlock", "evict"):
            found.append((name, int(rng.integers(0, 10))))
            continue
        text = texts[rng.integers(8)]
        tail = rng.integers(0, 3, rng.integers(1, 5)).tolist() if rng.random() < 0.4 else []
        found.append((name, [*text[: rng.integers(1, len(text) + 1)], *tail]))
    return found


def main() -> None:
    """Record CASES sequences."""
    rng = np.random.default_rng(0)
    cases = [{"ops": ops, "log": steps_of_engine(ops)} for ops in (operations(rng) for _ in range(CASES))]
    target = Path(__file__).parent / "data" / f"radix_sglang_{version('sglang')}.json"
    target.write_text(json.dumps(cases, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
