"""Deployments to choose among: every combination of the values given, by name, and why others cannot be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import Any

from sim.errors import SimctlError, UsageError
from sim.specs.attention_policy import AttentionPolicy
from sim.specs.gpu import GpuSpec
from sim.specs.gpus import get_gpu
from sim.specs.model import ModelSpec
from sim.specs.parallel import NO_PARALLEL, Parallel, placed
from sim.specs.topology import Topology
from sim.study.deployment import Deployment, plan_engine

MOST_CHOICES = 2000
SIZES = (1, 2, 4, 8)  # GPUs of a replica, where nothing is said of them


def deployments(
    model: str | ModelSpec,
    gpu: Sequence[str | GpuSpec],
    *,
    tp: Sequence[int | None] = (1,),
    dtype: Sequence[str | None] = (None,),
    kv_dtype: Sequence[str | None] = (None,),
    attention: Sequence[AttentionPolicy | None] = (None,),
    router: Sequence[str] = ("round-robin",),
    max_num_seqs: Sequence[int | float | None] = (None,),
    max_num_batched_tokens: Sequence[int | None] = (None,),
    topology: Mapping[str, Topology] | None = None,
    skipped: dict[str, str] | None = None,
    **fixed: Any,
) -> dict[str, Deployment]:
    """Deployments by name: GPUs of a replica, and the value of each option that has several.

    A float of `max_num_seqs` is a knee (Limits.batch_knee); `topology` is by GPU, where it is not the catalogue's; `fixed` are further
    arguments of Deployment.of. A `tp` of None: one GPU or, where that does not hold the model, the fewest that do and twice as many.
    `skipped` gets the reasons of combinations that cannot be; without it, or where none can be, the first raises UsageError, as do more
    than MOST_CHOICES.
    """
    lists: dict[str, Sequence[Any]] = {
        "gpu": [get_gpu(each) if isinstance(each, str) else each for each in gpu],
        "tp": tp, "dtype": dtype, "kv_dtype": kv_dtype, "attention": attention, "router": router, "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
    }  # fmt: skip
    if (count := math.prod(map(len, lists.values()))) > MOST_CHOICES:  # before they are built
        raise UsageError(f"{count} combinations to choose among, more than {MOST_CHOICES}")
    several = [key for key, each in lists.items() if len(each) > 1 and key not in ("gpu", "tp")]
    found: dict[str, Deployment] = {}
    refused: dict[str, str] = {} if skipped is None else skipped
    for values in product(*lists.values()):
        picked = dict(zip(lists, values, strict=True))
        more = {**fixed, "topology": (topology or {}).get(picked["gpu"].name)}
        for size in (picked["tp"],) if picked["tp"] else _fewest(model, picked, more):
            picked["tp"] = size
            name = _name(picked, several, fixed.get("parallel") or NO_PARALLEL)
            try:
                found[name] = _deployment(model, picked, more)
            except UsageError as error:
                if skipped is None:
                    raise
                refused[name] = str(error)
    if not found and refused:
        raise UsageError(next(iter(refused.values())))
    return found


def _deployment(model: str | ModelSpec, picked: Mapping[str, Any], fixed: Mapping[str, Any]) -> Deployment:
    given = {key: value for key, value in picked.items() if value is not None or key in ("dtype", "kv_dtype")}
    if isinstance(given.get("max_num_seqs"), float):
        given["batch_knee"] = given.pop("max_num_seqs")
    gpu = given.pop("gpu")
    return Deployment.of(model, gpu, **{**fixed, **given})


def _fewest(model: str | ModelSpec, picked: Mapping[str, Any], fixed: Mapping[str, Any]) -> tuple[int, ...]:
    most = SIZES[0]
    for tp in SIZES:
        with suppress(SimctlError):  # it cannot be split so, or does not fit
            deployment, most = _deployment(model, {**picked, "tp": tp}, fixed), tp
            plan_engine(deployment)
            return (tp,) if tp in (SIZES[0], SIZES[-1]) else (tp, 2 * tp)
    return (most,)


def _name(picked: Mapping[str, Any], several: Sequence[str], parallel: Parallel) -> str:
    said = [
        _word(picked[key]) if key in ("dtype", "router", "attention") else f"{key.replace('_', '-')} {_word(picked[key])}"
        for key in several
    ]
    return " ".join([placed(picked["gpu"].name, picked["tp"], parallel), *said])


def _word(value: Any) -> str:
    if isinstance(value, AttentionPolicy):
        return f"{value.kind}:{value.k}" if value.selects else value.kind
    return f"knee:{value:g}" if isinstance(value, float) else str(value)
