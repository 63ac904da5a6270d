"""Fleet files: pools of replicas and what joins them. Whatever is wrong is one error that names the path in the file.

    pools:
      - {name: prefill, role: prefill, replicas: 2, gpu: H100, model: Llama-3.1-8B, link: rdma-400}
      - {name: decode, role: decode, replicas: 2, gpu: H100, model: Llama-3.1-8B}
    network: {latency-s: 0.00001, shared-gb-s: 100}
    events: [{at-s: 30, pool: decode, replica: 1, action: fail}, {at-s: 90, pool: decode, replica: 1, action: start}]

A pool takes the options of `simctl simulate` for model, GPU, engine and router, and the keys of POOL_KEYS.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sim.cluster.autoscale import SIGNALS, Scaling
from sim.cluster.clients import Retries
from sim.cluster.encoders import EncoderSpec
from sim.cluster.kv_moves import StoreSpec
from sim.cluster.network import NetworkSpec
from sim.cluster.pools import FETCHES, ROLES
from sim.cluster.replica import ACTIONS, Change
from sim.deployment.memory import resident_weight_bytes
from sim.errors import UsageError
from sim.files import text_of
from sim.specs.lookup import did_you_mean
from sim.study.fleet_spec import LINKS, Fleet, PoolSpec
from sim.yaml_text import MAX_BYTES, read_yaml
from simctl.from_options.deployment_pools import is_fleet, pools_of
from simctl.options.file_options import option_value, options_by_name
from simctl.options.simulate_options import POOL, POOL_OPTIONS

if TYPE_CHECKING:
    from sim import Deployment

Deploy = Callable[[Mapping[str, Any]], "Deployment"]
"""Makes a deployment of a pool's options."""
KEYS = ("pools", "network", "kv-store", "encoders", "events", "retries", "on-failure")
POOL_KEYS = (
    "name",
    "role",
    "replicas",
    "max-replicas",
    "max-prompt-tokens",
    "link",
    "overlap",
    "reserve-tokens",
    "scaling",
    "fetch",
    "max-in-flight",
    "tenants",
    "router-options",
    "adapter-load-s",
)
ON_FAILURE = ("move", "lose")
MOST_REPLICAS = 1024


class At:
    """A place in the file: reads what is there and says what is wrong with it."""

    def __init__(self, where: str, value: Any) -> None:
        self.where, self.value = where, value

    def error(self, what: str) -> UsageError:
        return UsageError(f"{self.where}: {what}")

    def mapping(self, known: tuple[str, ...] | list[str]) -> dict[str, At]:
        """Values by key. UsageError for what is no mapping, or has other keys."""
        if not isinstance(self.value, dict):
            raise self.error("needs a mapping")
        for key in self.value:
            if key not in known:
                raise self.error(f"no such key: {key!r}{did_you_mean(str(key), known)}; there are {', '.join(known)}")
        before = self.where + ("." if ": " in self.where else ": ")
        return {key: At(f"{before}{key}", value) for key, value in self.value.items()}

    def settings(self) -> dict[str, Any]:
        """Numbers, words and yes or no by name."""
        if not isinstance(self.value, dict) or not all(isinstance(value, bool | int | float | str) for value in self.value.values()):
            raise self.error("needs a mapping of names to numbers, true or false, or words")
        return {str(key).replace("-", "_"): value for key, value in self.value.items()}

    def items(self) -> list[At]:
        """Items of a list."""
        if not isinstance(self.value, list):
            raise self.error("needs a list")
        return [At(f"{self.where}[{i}]", value) for i, value in enumerate(self.value)]

    def number(self, least: float = 0.0, most: float = 1e12) -> float:
        """A number of this range, bounds included."""
        if isinstance(self.value, bool) or not isinstance(self.value, int | float) or not least <= self.value <= most:
            raise self.error(f"needs a number from {least:g} to {most:g}, got {str(self.value)[:40]!r}")
        return float(self.value)

    def whole(self, least: int = 0, most: int = 2**31) -> int:
        """A whole number of this range, bounds included."""
        number = self.number(least, most)
        if not isinstance(self.value, int):
            raise self.error(f"needs a whole number, got {number:g}")
        return int(number)

    def word(self, known: tuple[str, ...] | list[str] | None = None) -> str:
        """A text, one of `known` where that is given."""
        if not isinstance(self.value, str) or not self.value or (known is not None and self.value not in known):
            raise self.error(f"needs {'one of ' + ', '.join(known) if known else 'a name'}, got {str(self.value)[:40]!r}")
        return self.value

    def made(self, make: Callable[..., Any], **given: Any) -> Any:
        """Result of `make`, its errors naming this place."""
        try:
            return make(**given)
        except UsageError as error:
            raise self.error(str(error)) from None


def load_fleet(path: Path, deploy: Deploy, gpu: str | None = None) -> Fleet:
    """Read a fleet file, or the pools of a deployment file. `deploy` makes a deployment of a pool's options; `gpu` is that of pools which
    name none.

    Raises UsageError naming the place in the file.
    """
    text = text_of(path, MAX_BYTES, path.name)
    root = At(path.name, read_yaml(text, path.name) if is_fleet(path, text) else pools_of(path, text))
    body = root.mapping(KEYS)
    if "pools" not in body:
        raise root.error("needs pools")
    pools = tuple(_pool(each, place, deploy, gpu) for place, each in enumerate(body["pools"].items()))
    given: dict[str, Any] = {}
    if "network" in body:
        net = body["network"].mapping(("latency-s", "shared-gb-s"))
        shared = {"shared_bytes_per_s": 1e9 * net["shared-gb-s"].number(1e-6, 1e9)} if "shared-gb-s" in net else {}
        given["network"] = NetworkSpec(net["latency-s"].number(0, 3600) if "latency-s" in net else 0.0, **shared)
    if "kv-store" in body:
        store = body["kv-store"].mapping(("gb", "gb-s"))
        for key in ("gb", "gb-s"):
            if key not in store:
                raise body["kv-store"].error(f"needs {key}")
        given["store"] = StoreSpec(1e9 * store["gb"].number(1e-6, 1e9), 1e9 * store["gb-s"].number(1e-6, 1e9))
    if "encoders" in body:
        stage = body["encoders"].mapping(("replicas", "image-s"))
        if "image-s" not in stage:
            raise body["encoders"].error("needs image-s")
        count = stage["replicas"].whole(1, MOST_REPLICAS) if "replicas" in stage else 1
        given["encoders"] = EncoderSpec(count, stage["image-s"].number(0, 3600))
    if "retries" in body:
        again = body["retries"].mapping(("most", "after-s"))
        after_s = again["after-s"].number(0, 1e6) if "after-s" in again else 0.0
        given["retries"] = Retries(again["most"].whole(0, 100) if "most" in again else 1, after_s)
    if "on-failure" in body:
        given["loses"] = body["on-failure"].word(ON_FAILURE) == "lose"
    if "events" in body:
        given["changes"] = tuple(_change(each, pools) for each in body["events"].items())
    fleet: Fleet = root.made(Fleet, pools=pools, **given)
    return fleet


def _pool(at: At, place: int, deploy: Deploy, gpu: str | None) -> PoolSpec:
    own = at.mapping([*POOL_KEYS, *POOL_OPTIONS])
    values = {key: each for key, each in own.items() if key in POOL_OPTIONS}
    for key in ("engine", "router"):
        if key in own and "." in str(own[key].value):
            raise own[key].error("a fleet file cannot name a class: importing it runs code")
    if gpu is not None and "gpu" in values:
        raise UsageError(f"--gpu: with --fleet, a pool of {at.where.partition(':')[0]} says that")
    if gpu is not None:
        values["gpu"] = At(f"{at.where}.gpu", gpu)
    options = _options(at, values)
    replicas = own["replicas"].whole(1, MOST_REPLICAS) if "replicas" in own else 1
    routing = own["router-options"].settings() if "router-options" in own else {}
    deployment = replace(at.made(deploy, options=options), replicas=replicas, router_options=routing)
    given: dict[str, Any] = {"name": own["name"].word() if "name" in own else f"pool-{place + 1}"}
    if "role" in own:
        given["role"] = own["role"].word(ROLES)
    if "max-replicas" in own:
        given["max_replicas"] = own["max-replicas"].whole(1, MOST_REPLICAS)
    if "max-prompt-tokens" in own:
        given["max_prompt_tokens"] = own["max-prompt-tokens"].whole(1)
    if "reserve-tokens" in own:
        given["reserve_tokens"] = own["reserve-tokens"].whole()
    if "overlap" in own:
        if not isinstance(own["overlap"].value, bool):
            raise own["overlap"].error("needs true or false")
        given["overlaps"] = own["overlap"].value
    if "fetch" in own:
        given["fetch"] = own["fetch"].word(FETCHES)
    if "max-in-flight" in own:
        given["max_in_flight"] = own["max-in-flight"].whole(1)
    if "adapter-load-s" in own:
        given["adapter_load_s"] = own["adapter-load-s"].number(0, 3600)
    if "tenants" in own:
        names = list(own["tenants"].value) if isinstance(own["tenants"].value, dict) else []
        given["weights"] = {name: each.number(1e-6, 1e6) for name, each in own["tenants"].mapping(names).items()}
    if "link" in own:
        link = own["link"]
        given["bytes_per_s"] = LINKS[link.word(list(LINKS))] if isinstance(link.value, str) else 1e9 * link.number(1e-6, 1e6)
    if "scaling" in own:
        given["scaling"] = _scaling(own["scaling"], deployment)
    spec: PoolSpec = at.made(PoolSpec, deployment=deployment, **given)
    return spec


def _options(at: At, values: Mapping[str, At]) -> dict[str, Any]:
    """All options of a pool: these values, else defaults."""
    known = options_by_name(POOL)
    given = {known[key].name: option_value(each.where, each.value, known[key]) for key, each in values.items()}
    try:
        return dict(POOL.make_context("pool", [], default_map=given).params)
    except click.UsageError as error:
        raise at.error(error.format_message()) from None


def _scaling(at: At, deployment: Deployment) -> Scaling:
    own = at.mapping(("signal", "target", "least", "period-s", "cold-start-s", "disk-gb-s", "down-after-s"))
    numbers = ("target", "period-s", "cold-start-s", "down-after-s")
    given: dict[str, Any] = {key.replace("-", "_"): own[key].number() for key in numbers if key in own}
    if "disk-gb-s" in own:
        read_s = resident_weight_bytes(deployment.model, deployment.precision) / (1e9 * own["disk-gb-s"].number(1e-3))
        given["cold_start_s"] = given.get("cold_start_s", Scaling().cold_start_s) + read_s
    if "signal" in own:
        given["signal"] = own["signal"].word(SIGNALS)
    if "least" in own:
        given["least"] = own["least"].whole(1, MOST_REPLICAS)
    scaling: Scaling = at.made(Scaling, **given)
    return scaling


def _change(at: At, pools: tuple[PoolSpec, ...]) -> Change:
    own = at.mapping(("at-s", "pool", "replica", "action"))
    for key in ("at-s", "action"):
        if key not in own:
            raise at.error(f"needs {key}")
    names = [pool.name for pool in pools]
    place = names.index(own["pool"].word(names)) if "pool" in own else 0
    replica = own["replica"].whole(0, pools[place].most - 1) if "replica" in own else 0
    before = sum(pool.most for pool in pools[:place])
    return Change(own["at-s"].number(0, 1e9), before + replica, own["action"].word(ACTIONS))
