"""`plan --vary`: settings of engine and parallelism to search, beside those that have an option with several values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any

import click

from sim.errors import UsageError
from sim.specs.lookup import did_you_mean
from simctl.options.file_options import option_value
from simctl.options.option_groups import members_of

MOST = 200  # combinations
ENGINE_OWN = "engine_option"
OWN = ("draft_tokens", "drafter", "async_scheduling")  # settings that only an engine reads
PLACED = ("pipeline_parallel_size", "data_parallel_size", "enable_expert_parallel")  # names of deployments have these in any case
FIXED = ("model", "posterior", "from_deployment", ENGINE_OWN)


def varied(options: Mapping[str, Any], pairs: Sequence[str], several: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(addition to a name, options) of every combination of NAME=VALUE,VALUE pairs; the options as they are where there is none.

    Raises UsageError for a name or value that there is not, or an option of which `several` values are given by its own name.
    """
    from simctl.options.simulate_options import POOL

    known = {name.lstrip("-"): each for each in members_of(POOL.params) for name in each.opts if each.name not in (*several, *FIXED)}
    axes: list[list[tuple[str, str, Any]]] = []  # words, parameter, value
    for pair in pairs:
        name, _, texts = pair.partition("=")
        option = known.get(name.replace("_", "-"))
        if not all(values := texts.split(",")):
            raise UsageError(f"--vary needs NAME=VALUE,VALUE, got {pair!r}")
        if option is None and (name := name.replace("-", "_")) not in OWN:
            if name in several:
                raise UsageError(f"--vary: --{name.replace('_', '-')} itself takes several values")
            there = (*OWN, *(key for key, each in known.items() if key == each.opts[0].lstrip("-")))
            raise UsageError(f"--vary: {name!r} is not searched{did_you_mean(name, there)}; there are {', '.join(there)}")
        axes.append([_value(name, text, option) for text in values])
    if (count := prod(map(len, axes))) > MOST:
        raise UsageError(f"--vary: {count} combinations, more than {MOST}")
    for combination in product(*axes):
        chosen = dict(options)
        for _, parameter, value in combination:
            chosen[parameter] = (*chosen[parameter], value) if parameter == ENGINE_OWN else value
        yield ", ".join(words for words, parameter, _ in combination if parameter not in PLACED), chosen


def _value(name: str, text: str, option: click.Option | None) -> tuple[str, str, Any]:
    words = f"{name.replace('_', '-')} {text}"
    if option is None:
        return words, ENGINE_OWN, f"{name}={text}"
    context = click.Context(click.Command("plan"))
    try:
        return words, str(option.name), option.type_cast_value(context, option_value(f"--vary {name}", text, option))
    except click.BadParameter as error:
        raise UsageError(f"--vary {name}: {error.message}") from None
