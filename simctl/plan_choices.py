"""The choices of `simctl plan`: every combination of the values given for options that take several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import click

from sim.errors import UsageError
from simctl.commands.simulate import command as simulate
from simctl.commands.simulate import study_of

if TYPE_CHECKING:
    from sim.plan.choices import Choice

MANY = ("gpu", "tp", "dtype", "kv_dtype", "attention", "router", "max_num_seqs", "max_num_batched_tokens")  # options of several values
MOST_CHOICES = 2000


def choices_of(options: Mapping[str, Any]) -> list[Choice]:
    """All choices, of one workload."""
    return offered(options)[0]


def offered(options: Mapping[str, Any]) -> tuple[list[Choice], dict[str, str]]:
    """All choices, of one workload, and by name why other combinations cannot be. UsageError for a value that an option refuses, for too
    many choices, or where no combination can be.
    """
    from sim.plan.choices import KINDS, ONE, Choice, Part, check_kinds, pooled
    from sim.specs.gpus import get_gpu

    check_kinds(options["pools"])
    prices = _prices(options["price"])
    lists = {name: options[name] or (None,) for name in MANY}
    if (count := len(list(product(*lists.values())))) > MOST_CHOICES:
        raise UsageError(f"{count} combinations to choose among, more than {MOST_CHOICES}")
    several = [name for name, values in lists.items() if len(values) > 1 and name != "gpu"]
    found: list[Choice] = []
    skipped: dict[str, str] = {}
    rates: dict[Any, Any] = {}
    unasked = simulate.make_context(simulate.name, []).params
    known = {option.name: option for option in simulate.params}
    for combination in product(*lists.values()):
        picked = dict(zip(lists, combination, strict=True))
        values = {
            name: unasked[name] if text is None else known[name].type_cast_value(click.Context(simulate), text)
            for name, text in picked.items()
        }
        named = (
            picked[key] if key in ("dtype", "router", "attention") else f"{key.replace('_', '-')} {picked[key]}"
            for key in several
            if key != "tp"
        )
        name = " ".join([f"{picked['tp']} x {get_gpu(values['gpu']).name}", *map(str, named)])
        asked = {**unasked, **options, **values, "replicas": 1, "fleet_file": None, "draws": None}
        try:
            study = study_of(asked, found[0].study.workload if found else None, rates)
        except UsageError as error:
            skipped[name] = str(error)
            continue
        d = study.deployment
        price = prices.get(d.gpu.name, d.gpu.price_per_hour)
        if price is None:
            raise UsageError(f"no list price of {d.gpu.name} is known: give --price {d.gpu.name}=USD per GPU-hour")
        lost = {"none": 0, "replica": 1, "node": max(d.links.replicas_per_node(d.gpus), 1)}[options["reserve"]]
        found.append(Choice(name, study, (Part(1, price * d.gpus, d.gpus, lost, d.links.gpus_per_node),)))
    if not found:
        raise UsageError(next(iter(skipped.values())))
    singles = list(found)
    all_kinds = [singles if kind == ONE else pooled(singles, kind) for kind in KINDS if kind in options["pools"]]
    if (count := sum(map(len, all_kinds))) > MOST_CHOICES:
        raise UsageError(f"{count} deployments to choose among, more than {MOST_CHOICES}: give fewer values, or one kind of --pools")
    choices = [choice for kind in all_kinds for choice in kind]
    if not choices:
        raise UsageError(f"--pools {','.join(options['pools'])}: no two of these deployments make such pools")
    return choices, skipped


def _prices(pairs: Sequence[str]) -> dict[str, float]:
    from sim.specs.gpus import get_gpu

    prices: dict[str, float] = {}
    for pair in pairs:
        name, _, text = pair.partition("=")
        try:
            price = float(text)
        except ValueError:
            price = -1.0
        if not 0 < price < 1e6:
            raise UsageError(f"--price needs GPU=USD per hour, got {pair!r}")
        prices[get_gpu(name).name] = price
    return prices
