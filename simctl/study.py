"""From the options of a simulate command to the study they mean."""

from __future__ import annotations

from typing import Any

import click

from sim.errors import UsageError
from simctl.workload_options import workload


def study_of(ctx: click.Context, options: dict[str, Any]) -> Any:
    """The sim.serve.Study that a simulate command's options mean. Raises UsageError when they contradict each other."""
    from dataclasses import replace

    import numpy as np

    from sim.admission import AdmissionLimits
    from sim.deployment import Limits, cap_at_knee
    from sim.host import NO_HOST, HostRates
    from sim.metrics import parse_goodput
    from sim.posterior import rates_for
    from sim.precision import Precision
    from sim.products import known_to
    from sim.serve import Study
    from sim.served import as_served
    from sim.specs.gpus import get_gpu
    from sim.specs.models import get_model

    def given(name: str) -> bool:
        return ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE

    model, gpu = get_model(options["model"]), get_gpu(options["gpu"])
    precision = Precision(options["dtype"], options["kv_dtype"])
    goodput = parse_goodput(options["goodput"])

    limits = {name: options[name] for name in Limits.__dataclass_fields__ if name in options}
    limits |= _attention(options) | _drafting(options)
    longest = options["max_model_len"] or model.max_context
    trace = workload(options, np.random.default_rng(options["seed"]), given, longest)
    draws, seed, tp = (options[name] for name in ("draws", "seed", "tp"))
    rates = rates_for(gpu, precision, path=options["posterior"], draws=max(20, draws or 0), seed=seed, tp=tp)
    host = HostRates()
    if options["served_path"]:
        rates, host = as_served(rates)
    if isinstance(limits["max_num_seqs"], float):
        limits["max_num_seqs"] = cap_at_knee(
            trace, model, precision, rates.point, tp, limits["max_num_seqs"], limits["attention"], known_to(gpu)
        )

    return Study(
        trace=trace,
        redraw=None
        if options["trace"]
        else lambda repeat: workload(options, np.random.default_rng([options["seed"], repeat + 1]), given, longest),
        model=model,
        gpu=gpu,
        precision=precision,
        rates=rates,
        tp=options["tp"],
        limits=Limits(**limits),
        host=_with_host_rates(
            host if options["host_overhead"] else replace(NO_HOST, work=host.work, boost=host.boost), options["host_rate"]
        ),
        replicas=options["replicas"],
        router=options["router"],
        max_concurrency=options["max_concurrency"],
        admission=AdmissionLimits(
            max_queue=options["max_queue"],
            bucket=options["token_bucket"],
            ttft_s=None if options["admit_ttft"] is None else options["admit_ttft"] / 1e3,
        ),
        goodput=goodput,
    )


def _with_host_rates(host: Any, pairs: tuple[str, ...]) -> Any:
    """The host's rates (sim.host.HostRates) with those that the user sets."""
    from dataclasses import fields, replace

    from sim.host import UNITS

    of_work = [field.name for field in fields(host.work)]
    for pair in pairs:
        name, _, value = pair.partition("=")
        if name not in UNITS and name not in of_work:
            raise UsageError(f"--host-rate: no rate {name!r}; there are {', '.join([*UNITS, *of_work])}")
        try:
            seconds = float(value)
        except ValueError:
            raise UsageError(f"--host-rate needs NAME=SECONDS, got {pair!r}") from None
        basis = f"{host.basis}; {name} as given"
        if name in UNITS:
            host = replace(host, basis=basis, **{name: seconds})
        else:
            host = replace(host, basis=basis, work=replace(host.work, **{name: seconds}))
    return host


def _attention(options: dict[str, Any]) -> dict[str, Any]:
    """What a decode reads and where KV lives, as fields of Limits."""
    from sim.policy import blocks, dense, pages, sink_window

    (kind, k), host = options["attention"], options["host_kv"]
    if host is not None and not 0.0 < host < 1e6:
        raise UsageError(f"--host-kv must be gigabytes above 0, got {host:g}")
    place = "hbm" if host is None else "host"
    made = {"dense": dense, "sink-window": sink_window}.get(kind)
    policy = made(place) if made else {"pages": pages, "blocks": blocks}[kind](k, place)
    return {"attention": policy, "host_kv_bytes": 1e9 * (host or 0.0)}


def _drafting(options: dict[str, Any]) -> dict[str, Any]:
    """The engine's own options, and the draft model that belongs to them, as fields of Limits."""
    from sim.specs.models import get_model

    settings = _engine_options(options["engine_option"])
    if options["draft_model"] is None:
        return {"options": settings}
    if options["engine"] != "vllm" or not settings.get("draft_tokens"):
        raise UsageError("--draft-model needs --engine vllm and --engine-option draft_tokens=K")
    # a draft model writes the KV of its own drafts
    return {"options": {"draft_lookahead_tokens": settings["draft_tokens"], **settings}, "draft": get_model(options["draft_model"])}


def _engine_options(pairs: tuple[str, ...]) -> dict[str, Any]:
    """NAME=VALUE settings, values as YAML scalars (true, 512, 0.1)."""
    import yaml

    settings: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        try:
            parsed = yaml.safe_load(value)
        except yaml.YAMLError:
            parsed = None
        if not (name and equals) or not isinstance(parsed, bool | int | float | str):
            raise UsageError(f"--engine-option needs NAME=VALUE with a number, true/false or a word, got {pair!r}")
        settings[name.replace("-", "_")] = parsed
    return settings
