"""Prices of models as an API by many providers, reduced to one line a model: `python -m studies.api_prices LISTS.csv`.

The lists have columns model, provider, usd_per_mtok_in, out, as_of. A provider counts once, with its least price of each kind; a model's
are the medians over providers. Names are matched without what providers add: an organisation, a version, a format.
"""

from __future__ import annotations

import csv
import json
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from sim.specs.api_prices import API_PRICES
from sim.specs.models import list_models

MAKERS = re.compile(r"^(alibaba|qwen|zai|minimax|meta|openai|nvidia|mistral|google)[.-](?=[a-z])")
ADDED = re.compile(r"(-v\d+:\d+|-maas|-instruct|-it|-turbo|-fp8|-nvfp4)+$")


def named(text: str) -> str:
    """A model's name without what providers add to it."""
    return re.sub(r"[^a-z0-9.]", "", ADDED.sub("", MAKERS.sub("", text.lower().rsplit("/", 1)[-1])))


def reduced(rows: Sequence[Mapping[str, str]]) -> dict[str, dict[str, Any]]:
    """By catalogue model: medians over providers, their number and the newest month."""
    found = {}
    for model in list_models():
        of_model = [row for row in rows if named(row["model"]) == named(model)]
        least: dict[str, tuple[float, float]] = {}
        for row in of_model:
            price = float(row["usd_per_mtok_in"]), float(row["out"])
            least[row["provider"]] = min(price, least.get(row["provider"], price))
        if least:
            read, written = (round(statistics.median(each), 4) for each in zip(*least.values(), strict=True))
            date = max(row["as_of"][:7] for row in of_model)
            found[model] = {"usd_per_mtok_in": read, "usd_per_mtok_out": written, "providers": len(least), "date": date}
    return found


def main() -> None:
    """Write the packaged table."""
    with open(sys.argv[1], encoding="utf-8", newline="") as file:
        found = reduced(list(csv.DictReader(file)))
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(price)}" for name, price in found.items())
    API_PRICES.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    print(f"{len(found)} models of {len(list_models())}")


if __name__ == "__main__":
    main()
