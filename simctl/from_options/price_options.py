"""Prices of GPUs that a plan takes: GPU=USD per GPU-hour, a file of offers by provider, or MARKET, the median over many providers.

A file is a YAML list of {gpu, usd_per_hour, provider, date}; of a GPU's offers the cheapest counts. Offers that can be taken away say
{spot: true, losses_per_hour: 0.1, cold_start_s: 240}, and perhaps `disk_gb_s`, the speed at which weights are then read, `lost_together`,
the share of losses that take all replicas of the GPU at once, and `notice_s`, after which a replica is gone. A year's term, paid whether
used or not, says `reserved: true`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from sim.errors import UsageError
from sim.files import text_of
from sim.planning.spot import Spot
from sim.specs.gpus import get_gpu, list_gpus, market
from sim.specs.lookup import did_you_mean
from sim.yaml_text import MAX_BYTES, read_yaml

NUMBER = int, float
LOST = {
    "losses_per_hour": NUMBER,
    "cold_start_s": NUMBER,
    "disk_gb_s": NUMBER,
    "lost_together": NUMBER,
    "notice_s": NUMBER,
}  # of spot offers
KEYS: dict[str, Any] = {"gpu": str, "usd_per_hour": NUMBER, "provider": str, "date": object, "spot": bool, "reserved": bool} | LOST
NEEDED = ("gpu", "usd_per_hour", "provider", "date")
MOST_USD = 1e6
MARKET = "market"


def prices_of(given: Sequence[str]) -> tuple[dict[str, float], dict[str, Spot], dict[str, float]]:
    """USD per GPU-hour, spot offers, and USD per GPU-hour of a year's term, by GPU.

    What a file's prices are, and which of it are not used, goes to stderr. UsageError for what is no price.
    """
    prices: dict[str, float] = {}
    said: dict[str, float] = {}  # by themselves: they replace a file's
    spots: dict[str, Spot] = {}
    terms: dict[str, float] = {}
    for each in given:
        if each == MARKET:
            prices |= {gpu: found[0] for gpu in list_gpus() if (found := market(gpu)) is not None}
            continue
        name, equals, text = each.partition("=")
        if not equals and Path(each).suffix in (".yaml", ".yml", ".json"):
            lasting, spot, kept = _of_file(Path(each))
            prices, spots, terms = prices | lasting, spots | spot, terms | kept
            continue
        try:
            price = float(text)
        except ValueError:
            price = -1.0
        if not 0 < price < MOST_USD:
            raise UsageError(f"--price needs GPU=USD per hour, got {each!r}, {MARKET}, or a YAML file of prices")
        if (gpu := get_gpu(name).name) in said:
            raise UsageError(f"--price: {gpu} has two prices, {said[gpu]:g} and {price:g}")
        prices[gpu] = said[gpu] = price
    return prices, spots, terms


def _of_file(path: Path) -> tuple[dict[str, float], dict[str, Spot], dict[str, float]]:
    try:
        rows = read_yaml(text_of(path, MAX_BYTES, path.name), path.name)
    except OSError as error:
        raise UsageError(f"--price {path}: {error.strerror}") from None
    if not isinstance(rows, list) or not rows:
        raise UsageError(f"{path.name}: must be a list of prices, each {{{', '.join(KEYS)}}}")
    offers = [_offer(f"{path.name}: price {place + 1}", row) for place, row in enumerate(rows)]
    offers.sort(key=lambda each: -each["usd_per_hour"])  # of a GPU the last one counts
    best = {each["gpu"]: each for each in offers if not (each.get("spot") or each.get("reserved"))}
    kept = {each["gpu"]: float(each["usd_per_hour"]) for each in offers if each.get("reserved")}
    taken = {each["gpu"]: each for each in offers if "losses_per_hour" in each}
    spots = {gpu: _spot(f"{path.name}: {gpu} on spot", one) for gpu, one in taken.items()}
    said = [f"{gpu} {one['usd_per_hour']:g} USD/hour ({one['provider']}, {one['date']})" for gpu, one in best.items()]
    said += [f"{gpu} on spot {one.usd_per_hour:g} USD/hour, lost {one.losses_per_hour:g} times an hour" for gpu, one in spots.items()]
    said += [f"{gpu} reserved {usd:g} USD/hour" for gpu, usd in kept.items()]
    if unused := sum(each.get("spot", False) and "losses_per_hour" not in each for each in offers):
        said.append(f"{unused} spot prices are not used: they lack losses_per_hour")
    click.echo(f"{path.name}: {'; '.join(said)}", err=True)
    return {gpu: float(one["usd_per_hour"]) for gpu, one in best.items()}, spots, kept


def _spot(where: str, offer: Mapping[str, Any]) -> Spot:
    if "cold_start_s" not in offer:
        raise UsageError(f"{where}: losses_per_hour needs cold_start_s, the seconds until another replica is up")
    disk = {"disk_bytes_per_s": 1e9 * offer["disk_gb_s"]} if "disk_gb_s" in offer else {}
    try:
        more = {key: float(offer[key]) for key in ("lost_together", "notice_s") if key in offer}
        return Spot(float(offer["usd_per_hour"]), offer["losses_per_hour"], offer["cold_start_s"], **disk, **more)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


def _offer(where: str, row: Any) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise UsageError(f"{where}: must be a mapping of {', '.join(KEYS)}")
    if unknown := [key for key in row if key not in KEYS]:
        raise UsageError(f"{where}: unknown key {unknown[0]!r}{did_you_mean(str(unknown[0]), KEYS)}; there are {', '.join(KEYS)}")
    if missing := [key for key in NEEDED if key not in row]:
        raise UsageError(f"{where}: needs {', '.join(missing)}")
    wrong = [key for key, kind in KEYS.items() if key in row and (not isinstance(row[key], kind) or (kind is NUMBER and row[key] is True))]
    if wrong or not row["usd_per_hour"] > 0 or not all(0 <= row[key] < MOST_USD for key in ("usd_per_hour", *LOST) if key in row):
        raise UsageError(
            f"{where}: gpu and provider are texts, spot and reserved true or false, others numbers, usd_per_hour a number above 0"
        )
    if (given := [key for key in LOST if key in row]) and not (row.get("spot") and "losses_per_hour" in row):
        raise UsageError(f"{where}: {given[0]} is of an offer with spot: true and losses_per_hour")
    if row.get("spot") and row.get("reserved"):
        raise UsageError(f"{where}: is either spot or reserved")
    return row | {"gpu": get_gpu(row["gpu"]).name}
