"""Prices of GPUs by many providers, reduced to one line a card: `python -m studies.gpu_prices LISTS.csv`.

The lists have columns gpu, provider, kind (on_demand, spot, purchase, ...), usd_per_gpu_hour, purchase_usd, as_of. Of a card's offers the
first kind of KINDS that is offered counts, of a provider the least one; the price is the median over providers. A card that is only sold
is spread over three years.
"""

from __future__ import annotations

import csv
import json
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sim.specs.gpus import PRICES, list_gpus

KINDS = ("on_demand", "spot", "purchase")
OWNED_H = 3 * 365 * 24
MONTH = re.compile(r"20\d\d-\d\d")  # an offer without one is left out


def reduced(rows: Sequence[Mapping[str, str]]) -> dict[str, dict[str, Any]]:
    """By card of the catalogue: median, least and highest USD per GPU-hour over providers, their kind, number and newest month."""
    found = {}
    for gpu in list_gpus():
        of_card = [row for row in rows if row["gpu"] == gpu and MONTH.match(row["as_of"])]
        kind = next((kind for kind in KINDS if any(row["kind"] == kind for row in of_card)), None)
        if kind is None:
            continue
        chosen = [row for row in of_card if row["kind"] == kind]
        least: dict[str, float] = {}
        for row in chosen:
            provider = re.split(r"[^a-z0-9]+", row["provider"].lower())[0]
            usd = float(row["purchase_usd"]) / OWNED_H if kind == "purchase" else float(row["usd_per_gpu_hour"])
            least[provider] = min(usd, least.get(provider, usd))
        date = max(row["as_of"][:7] for row in chosen)
        usd_per_hour, low, high = (round(f(least.values()), 3) for f in (statistics.median, min, max))
        found[gpu] = {"usd_per_hour": usd_per_hour, "low": low, "high": high, "kind": kind, "providers": len(least), "date": date}
    return found


def main() -> None:
    """Write the packaged table."""
    with open(sys.argv[1], encoding="utf-8", newline="") as file:
        found = reduced(list(csv.DictReader(file)))
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(price)}" for name, price in found.items())
    Path(PRICES).write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    print(f"{len(found)} cards of {len(list_gpus())}")


if __name__ == "__main__":
    main()
