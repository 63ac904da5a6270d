"""Prices of GPUs that a plan takes: GPU=USD per GPU-hour, or a file of offers by provider.

A file is a YAML list of {gpu, usd_per_hour, provider, date, spot}; of a GPU's offers the cheapest counts that nobody can take away.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from sim.errors import UsageError
from sim.files import text_of
from sim.specs.gpus import get_gpu
from sim.yaml_text import MAX_BYTES, read_yaml

KEYS = {"gpu": str, "usd_per_hour": (int, float), "provider": str, "date": object, "spot": bool}
NEEDED = ("gpu", "usd_per_hour", "provider", "date")
MOST_USD = 1e6


def prices_of(given: Sequence[str]) -> dict[str, float]:
    """USD per GPU-hour by GPU; what a file's prices are, and which of it are not used, goes to stderr. UsageError for what is no price."""
    prices: dict[str, float] = {}
    for each in given:
        name, equals, text = each.partition("=")
        if not equals and Path(each).suffix in (".yaml", ".yml", ".json"):
            prices |= _of_file(Path(each))
            continue
        try:
            price = float(text)
        except ValueError:
            price = -1.0
        if not 0 < price < MOST_USD:
            raise UsageError(f"--price needs GPU=USD per hour, got {each!r}, or a YAML file of prices")
        prices[get_gpu(name).name] = price
    return prices


def _of_file(path: Path) -> dict[str, float]:
    try:
        rows = read_yaml(text_of(path, MAX_BYTES, path.name), path.name)
    except OSError as error:
        raise UsageError(f"--price {path}: {error.strerror}") from None
    if not isinstance(rows, list) or not rows:
        raise UsageError(f"{path.name}: must be a list of prices, each {{{', '.join(KEYS)}}}")
    offers = [_offer(f"{path.name}: price {place + 1}", row) for place, row in enumerate(rows)]
    lasting = sorted((each for each in offers if not each.get("spot")), key=lambda each: -each["usd_per_hour"])
    best = {each["gpu"]: each for each in lasting}
    said = [f"{gpu} {one['usd_per_hour']:g} USD/hour ({one['provider']}, {one['date']})" for gpu, one in best.items()]
    spot = len(offers) - len(lasting)
    unused = [f"{spot} spot prices are not used: a plan's GPUs are not taken away"] if spot else []
    click.echo(f"{path.name}: {'; '.join([*said, *unused])}", err=True)
    return {gpu: float(one["usd_per_hour"]) for gpu, one in best.items()}


def _offer(where: str, row: Any) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise UsageError(f"{where}: must be a mapping of {', '.join(KEYS)}")
    if unknown := [key for key in row if key not in KEYS]:
        raise UsageError(f"{where}: unknown key {unknown[0]!r}; there are {', '.join(KEYS)}")
    if missing := [key for key in NEEDED if key not in row]:
        raise UsageError(f"{where}: needs {', '.join(missing)}")
    usd = row["usd_per_hour"]
    if isinstance(usd, bool) or any(not isinstance(row[key], kind) for key, kind in KEYS.items() if key in row) or not 0 < usd < MOST_USD:
        raise UsageError(f"{where}: gpu and provider are texts, usd_per_hour a number above 0, spot true or false")
    return row | {"gpu": get_gpu(row["gpu"]).name}
