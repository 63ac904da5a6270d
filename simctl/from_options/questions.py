"""The question of each command, of its options."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from sim.errors import SimctlError, UsageError
from simctl.from_options.deployments import attention_fields, deployment_of, fields_of, fleet_of, topology_of

if TYPE_CHECKING:
    from sim import Deployment, Plan, RegimeMap, Simulate, WhatIf
    from sim.rates.host import Host
    from sim.rates.source import RateSource

LASTING_PROMPTS = 1000  # any number that is enough for lengths to show: a load that lasts draws as many as it takes
SHORTEST = 2**13  # tokens: the first context of a map


def what_if_of(options: Mapping[str, Any]) -> WhatIf | RegimeMap:
    """The question of `simctl what-if`, with --map that of the map."""
    from sim import WhatIf

    if isinstance(options["max_num_seqs"], float):
        raise UsageError("--max-num-seqs knee:TAU needs a workload: use simctl simulate")
    names = ("batches", "posterior", "draws", "seed", "served", "stack")
    given = {name: options[name] for name in names if options.get(name) is not None}
    if (on := host_of(options)) is not None:
        if not options["served"]:
            raise UsageError("--host is of a served engine: leave out --in-process")
        given["host"] = on
    if options["kv_in"] is not None:
        return _regime_map(options, given)
    fields = {"ks": "ks", "users": "users", "think_time": "think_s", "random_output_len": "output_tokens"}
    given |= {field: options[name] for name, field in fields.items() if options[name] is not None}
    if options["think_time"] is not None and options["users"] is None:
        raise UsageError("--think-time is of people: give --users N")
    return WhatIf(deployment_of(options), context_of(options), **given)


def context_of(options: Mapping[str, Any]) -> int:
    """Tokens of a what-if's context: --ctx, or prompt and answer."""
    from simctl.options.what_if_parser import OUTPUT_TOKENS

    context, prompt = options["context"], options["random_input_len"]
    if (context is None) == (prompt is None):
        raise UsageError("give one of --ctx TOKENS, all that a user's context holds, and --random-input-len TOKENS, its prompt")
    return int(context if prompt is None else prompt + (options["random_output_len"] or OUTPUT_TOKENS))


def of_sparse(options: Mapping[str, Any]) -> bool:
    """Whether a what-if is of sparse attention: asked for, or of a long context."""
    from sim.rates.stack_rates import LONG_CONTEXT

    asked = options["sparse"] or any(options[name] is not None for name in ("ks", "kv_in", "stack"))
    return asked or (options["users"] is None and context_of(options) >= LONG_CONTEXT)


def _regime_map(options: Mapping[str, Any], given: Mapping[str, Any]) -> RegimeMap:
    from sim import RegimeMap

    high, ks = context_of(options), options["ks"] or (8,)
    lengths = ("random_input_len", "random_output_len")
    if len(ks) > 1 or any(options[name] for name in ("explain", "users", "think_time", *lengths)):
        raise UsageError("--map: of --ctx and one --k, and without --explain, --users and --think-time")
    if high < SHORTEST:
        raise UsageError(f"--map: contexts start at {SHORTEST} tokens, beyond --ctx {high}")
    contexts = tuple(SHORTEST * 2**i for i in range(40) if SHORTEST * 2**i <= high)
    return RegimeMap(deployment_of(options), ks[0], options["kv_in"], contexts, **given)


def simulate_of(options: Mapping[str, Any]) -> Simulate:
    """The question of `simctl simulate`. Raises UsageError when options contradict each other."""
    from sim import Simulate
    from sim.results.metrics import parse_goodput
    from simctl.from_options.users import with_users
    from simctl.from_options.workloads import workload_of

    goodput = parse_goodput(options["goodput"])
    rates = _rates(options)
    if options["fleet_file"] is not None:
        served: Any = fleet_of(options)
        deployments = [pool.deployment for pool in served.pools]
    elif options["gpu"] is None:
        raise UsageError("on what? give --gpu NAME, or --fleet FILE")
    else:
        served = deployment_of(options)
        deployments = [served]
    workload = workload_of(with_users(options, deployments, rates), max(d.longest for d in deployments))
    return Simulate(served, workload, rates, goodput, options["goal"], options["draws"], options["iterations"])


def plan_of(options: Mapping[str, Any]) -> Plan:
    """The question of `simctl plan`."""
    from sim import Plan
    from sim.planning.choices import check_kinds
    from sim.results.metrics import parse_goodput
    from sim.slo import parse_slo
    from simctl.from_options.price_options import prices_of
    from simctl.from_options.users import with_users
    from simctl.from_options.workloads import workload_of

    if options["gpu"] is None:
        raise UsageError("plan on what? give --gpu NAME[,NAME...]")
    options, hours = _busiest_hour(options)
    rates = _rates({**options, "seed": 0})
    goodput = parse_goodput(options["goodput"])
    parse_slo(options["slo"], goodput)
    check_kinds(options["pools"])
    prices, spot, reserved = prices_of(options["price"])
    found, skipped = _deployments(options)
    first = next(iter(found.values()))
    workload = workload_of(_counted(with_users(options, found.values(), rates)), first.longest)
    return Plan(
        found, workload, options["slo"], goodput, prices, rates, options["pools"], options["reserve"],
        options["most_gpus"], options["most_kw"], hours, options["quick"], options["emit"], _pool(options["workers"]), options["for_s"],
        options["within"], skipped, spot, _stock_of(options["inventory"]),
        options["growth"], reserved,
    )  # fmt: skip


def _stock_of(inventory: Mapping[str, int] | None) -> dict[str, int]:
    """GPUs that there are by their catalogue names, none where nothing is said. UsageError for a GPU that is named twice."""
    from sim.specs.gpus import get_gpu

    stock: dict[str, int] = {}
    for name, count in (inventory or {}).items():
        if (gpu := get_gpu(name).name) in stock:
            raise UsageError(f"--inventory: {gpu} has two numbers")
        stock[gpu] = count
    return stock


def _deployments(options: Mapping[str, Any]) -> tuple[dict[str, Deployment], dict[str, str]]:
    """Deployments to choose among by name, and why other combinations are none. UsageError where there is none at all, or too many."""
    from sim import get_model
    from sim.planning.grid import MOST_CHOICES, deployments
    from sim.specs.gpus import get_gpu
    from simctl.from_options.varied import varied
    from simctl.options.plan_options import MANY

    many = {name: _values(name, options[name]) for name in MANY}
    model, attention = get_model(options["model"]), [each or ("dense", 0) for each in many.pop("attention")]
    found: dict[str, Deployment] = {}
    skipped: dict[str, str] = {}
    for said, each in varied(options, options["vary"], MANY):
        fixed = fields_of({name: value for name, value in each.items() if name not in MANY})
        places = [attention_fields(policy, each["host_kv"]) for policy in attention]
        refused: dict[str, str] = {}
        try:
            some = deployments(
                model,
                **many,
                attention=[place["attention"] for place in places],
                skipped=refused,
                topology={get_gpu(gpu).name: at for gpu in many["gpu"] if (at := topology_of(each, gpu)) is not None},
                host_kv_bytes=places[0]["host_kv_bytes"],
                **fixed,
            )
        except UsageError as error:
            if not options["vary"]:
                raise
            some, refused = {}, refused or {"": str(error)}
        found |= {f"{name} {said}".strip(): d for name, d in some.items()}
        skipped |= {f"{name} {said}".strip(): why for name, why in refused.items()}
        if len(found) > MOST_CHOICES:
            raise UsageError(f"--vary: more than {MOST_CHOICES} deployments to choose among")
    if not found:
        raise UsageError(next(iter(skipped.values())))
    return found, skipped


def _counted(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """With a number of requests where a rate alone says that the load lasts, which then does not depend on it."""
    drawn = all(options[name] is None for name in ("num_prompts", "trace", "agent_sessions"))
    return {**options, "num_prompts": LASTING_PROMPTS} if drawn and math.isfinite(options["request_rate"] or math.inf) else options


def _pool(workers: int | str | None) -> Any:
    """What a plan's `workers` are: a number, or what opens the pool of a Dask scheduler."""
    if not isinstance(workers, str):
        return workers
    from simctl.from_options.dask_workers import dask_pool

    return partial(dask_pool, workers, 0)


QUESTIONS = {"simulate": simulate_of, "plan": plan_of, "what-if": what_if_of}


def _rates(options: Mapping[str, Any]) -> RateSource:
    from sim.rates.source import RateSource

    seconds: dict[str, float] = {}
    bare = "none" in options["host_rate"]
    for pair in options["host_rate"]:
        if pair == "none":
            continue
        name, _, value = pair.partition("=")
        try:
            seconds[name] = float(value)
        except ValueError:
            raise UsageError(f"--host-rate needs NAME=SECONDS or none, got {pair!r}") from None
    if options["overhead"] is not None and not options["served"]:
        raise UsageError("--overhead is of a served engine: leave out --in-process")
    if options["host"] is not None and (options["overhead"] is not None or not options["served"]):
        raise UsageError("--host is of the packaged serving overhead: leave out --overhead and --in-process")
    speed = host_of(options)
    try:
        return RateSource(options["posterior"], options["served"], options["overhead"], not bare, speed, seconds, options["seed"])
    except UsageError as error:
        raise UsageError(f"--host-rate: {error}") from None


def host_of(options: Mapping[str, Any]) -> Host | None:
    """The host that --host gives. UsageError for what is none."""
    from sim.rates.host import Host

    if options["host"] is None:
        return None
    try:
        return Host.of(options["host"])
    except SimctlError as error:
        raise UsageError(f"--host: {error}") from None


def _values(name: str, texts: Sequence[str] | None) -> list[Any]:
    """Values of an option of which a plan takes several, as `simctl simulate` reads one."""
    from simctl.options.simulate_options import SIMULATE

    option = next(each for each in SIMULATE if each.name == name)
    context = click.Context(click.Command("plan"))
    return [option.type_cast_value(context, text) for text in texts or ()] or [None]


def _busiest_hour(options: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[float]]:
    """The options at the rate of the busiest hour of --day, and the rates of all hours; none without it."""
    if options["day"] is None:
        return options, []
    from sim.planning.day import hourly
    from sim.workload.rate_curve import load_curve

    for name in ("rate_curve", "max_concurrency", "trace", "agent_sessions"):
        if options[name] is not None:
            raise UsageError(f"--day draws requests at the rates of its hours: leave out --{name.replace('_', '-')}")
    curve = load_curve(options["day"])
    rates = hourly(curve if options["request_rate"] is None else curve.scaled_to(options["request_rate"]))
    return {**options, "request_rate": max(rates)}, rates
