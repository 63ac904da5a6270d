"""What makes more users fit a GPU's memory: a larger share, KV in 8 bits, narrower weights, shorter contexts, more or other GPUs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from sim.closed_form.ways import MOST_SHARE
from sim.deployment.memory import n_max
from sim.errors import SimctlError
from sim.specs.attention_policy import dense
from sim.specs.gpus import BOUGHT, get_gpu, list_gpus
from sim.specs.precision import served_precision
from sim.study.deployment import Deployment

NARROW_KV = "--kv-dtype fp8"
DEGREES = (2, 4, 8, 16)  # of tensor parallelism
SHORTEST = 0.5  # of the context asked for: what holds less answers another question


@dataclass(frozen=True, slots=True)
class Fix:
    """A change, in options of the command line or words, how many users it holds, and USD per hour with it (None: no price is known)."""

    change: str
    fit: int
    usd_per_hour: float | None


def users_that_fit(d: Deployment, context: int) -> int:
    """Users with so many tokens each that a deployment holds at once."""
    return int(min(n_max(d.memory(), d.request_bytes(context, dense())[0]), d.batch_limits()[0]))


def fixes(d: Deployment, context: int, users: int, fit: int, servers: int) -> list[Fix]:
    """Changes with which `users` fit where `fit` do, `servers` of the same among them: what costs nothing first, in order of what it takes
    from the answer, then by USD.
    """
    price = _price(d)
    found = [fix for kind in KINDS for fix in kind(d, context, users)]
    if fit:
        found.append(Fix(f"{servers} such servers", servers * fit, None if price is None else servers * price))
    return sorted(found, key=lambda fix: math.inf if fix.usd_per_hour is None else fix.usd_per_hour)


def _price(d: Deployment) -> float | None:
    return None if d.gpu.price_per_hour is None else d.gpu.price_per_hour * d.gpus


def _settings(d: Deployment, context: int, users: int) -> Iterator[Fix]:
    if users > d.batch_limits()[0]:
        d = replace(d, limits=replace(d.limits, max_num_seqs=users))
        if (fit := users_that_fit(d, context)) >= users:
            yield Fix(f"--max-num-seqs {users}", fit, _price(d))
            return
    share = round(max(MOST_SHARE, d.limits.memory_share), 2)
    more = f"--gpu-memory-utilization {share:g}"
    changes = [(more, replace(d, limits=replace(d.limits, gpu_memory_utilization=share)))]
    if narrow := _narrow_kv(d):
        both = replace(narrow, limits=replace(narrow.limits, gpu_memory_utilization=share))
        changes += [(NARROW_KV, narrow), (f"{NARROW_KV} {more}", both)]
    for change, changed in changes:
        if (fit := users_that_fit(changed, context)) >= users:
            yield Fix(change, fit, _price(d))
            return


def _narrow_kv(d: Deployment) -> Deployment | None:
    """With KV in 8 bits, where it has 16 and the engine has such a cache on this card."""
    if d.precision.kv not in ("bf16", "fp16"):
        return None
    try:
        return replace(d, precision=replace(d.precision, kv="fp8"))
    except SimctlError:
        return None


def _lighter(d: Deployment, context: int, users: int) -> Iterator[Fix]:
    """Weights in 8 bits, quantised while loading, else a checkpoint in 4 bits, else either with KV in 8 bits, on the fewest GPUs with which
    they hold so many; where the model's own weights have 16.
    """
    if d.precision.weights not in ("bf16", "fp16"):
        return
    narrow = _narrow_kv(d)
    starts = [("", d), *([(f" {NARROW_KV}", narrow)] if narrow else [])]
    degrees = (d.tp, *(degree for degree in DEGREES if degree > d.tp))
    for tp, (kv, start), weights in product(degrees, starts, ("fp8", "int4")):
        try:
            lighter = replace(start, tp=tp, precision=replace(start.precision, weights=weights))
            count = users_that_fit(lighter, context)
        except SimctlError:  # the card, or the engine, has none
            continue
        if count >= users:
            yield Fix(f"--dtype {weights}{kv}{'' if tp == d.tp else f' --tp {tp}'}", count, _price(lighter))
            return


def _shorter(d: Deployment, context: int, users: int) -> Iterator[Fix]:
    """Contexts of the longest power of two that fits, or three quarters of one."""
    lengths = sorted({int(2**k * part) for k in range(8, 30) for part in (1.0, 0.75)}, reverse=True)
    for length in lengths:
        if SHORTEST * context <= length < context and (fit := users_that_fit(d, length)) >= users:
            yield Fix(f"contexts of {length} tokens", fit, _price(d))
            return


def _wider(d: Deployment, context: int, users: int) -> Iterator[Fix]:
    for tp in DEGREES:
        if tp > d.tp:
            try:
                wider = replace(d, tp=tp)
                count = users_that_fit(wider, context)
            except SimctlError:
                continue
            if count >= users:
                yield Fix(f"--tp {tp}", count, _price(wider))
                return


def _other(d: Deployment, context: int, users: int) -> Iterator[Fix]:
    """The cheapest other card of the catalogue that holds them on as many GPUs, in dtypes that it has."""
    rented = [gpu for name in list_gpus() if (gpu := get_gpu(name)).price_per_hour is not None and gpu.price_source != BOUGHT]
    for gpu in sorted(rented, key=lambda gpu: gpu.price_per_hour or 0.0):
        if gpu.memory_bytes <= d.gpu.memory_bytes:
            continue
        try:
            precision = served_precision(d.model, gpu, d.precision.weights, d.precision.kv)
            other = replace(d, gpu=gpu, precision=precision, topology=None)
            fit = users_that_fit(other, context)
        except SimctlError:
            continue
        if fit >= users:
            yield Fix(f"--gpu {gpu.name}", fit, _price(other))
            return


KINDS = (_settings, _lighter, _shorter, _wider, _other)
