"""Deployments and fleets that options mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sim.errors import UsageError

if TYPE_CHECKING:
    from sim import Deployment
    from sim.cluster.admission import AdmissionLimits
    from sim.specs.lora import Lora
    from sim.specs.topology import Topology
    from sim.study.fleet_spec import Fleet

LORA = {"rank": "max_lora_rank", "adapters": "max_loras", "share": "lora_share"}
ADMISSION = ("max_queue", "token_bucket", "admit_ttft", "skip_too_long")


def fields_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of Deployment.of after model and GPU, those of what-if among them; options left out are left out."""
    from sim import Limits
    from sim.specs.parallel import Parallel

    found = {
        name: options[name] for name in (*Limits.__dataclass_fields__, "dtype", "kv_dtype", "tp", "replicas", "router") if name in options
    }
    if "max_model_len" in options:
        found["max_model_len"] = options["max_model_len"] or "auto"  # a length is shortened only where nobody gave one
    if isinstance(options.get("max_num_seqs"), float):
        found["max_num_seqs"], found["batch_knee"] = None, options["max_num_seqs"]
    if "attention" in options:
        found |= attention_fields(options["attention"], options["host_kv"])
    if "engine_option" in options:
        found |= _drafting(options)
    if "router_option" in options:
        found["router_options"] = settings("--router-option", options["router_option"])
    if "max_queue" in options:
        found["admission"] = admission(options)
    if "enable_lora" in options:
        found["lora"] = _lora(options)
    found["parallel"] = Parallel(
        options.get("pipeline_parallel_size", 1), options.get("data_parallel_size", 1), options.get("enable_expert_parallel", False)
    )
    return found


def topology_of(options: Mapping[str, Any], gpu: str) -> Topology | None:
    """The topology that options give a GPU; None where neither is given."""
    from sim.specs.gpus import get_gpu
    from sim.specs.topology import default_topology, load_topology, with_node

    file, node = options.get("topology"), options.get("gpus_per_node")
    if file is None and node is None:
        return None
    found = default_topology(get_gpu(gpu)) if file is None else load_topology(file, get_gpu(gpu))
    return found if node is None else with_node(found, node)


def deployment_of(options: Mapping[str, Any], /, **more: Any) -> Deployment:
    """The deployment that options mean; `more` are further arguments of Deployment.of."""
    from sim import Deployment

    fields = {**fields_of(options), "topology": topology_of(options, options["gpu"])}
    return Deployment.of(options["model"], options["gpu"], **fields | more)


def admission(options: Mapping[str, Any]) -> AdmissionLimits:
    """Admission limits."""
    from sim import AdmissionLimits

    ttft_ms = options["admit_ttft"]
    return AdmissionLimits(
        options["max_queue"], options["token_bucket"], None if ttft_ms is None else ttft_ms / 1e3, options["skip_too_long"]
    )


def fleet_of(options: Mapping[str, Any]) -> Fleet:
    """The fleet of --fleet; what limits admission is the command's. UsageError for an option that belongs into the file."""
    from simctl.from_options.fleet_file import load_fleet
    from simctl.options.option_groups import members_of
    from simctl.options.simulate_options import OF_POOLS

    for name, default in OF_POOLS.make_context("pool", []).params.items():
        if options[name] != default and name != "gpu":  # for pools that name none
            flag = (
                next(option for option in members_of(OF_POOLS.params) if option.name == name)
                .get_error_hint(None)
                .strip("'")
                .split("' / '")[0]
            )
            raise UsageError(f"{flag}: with --fleet, a pool of {options['fleet_file'].name} says that")
    door = {name: options[name] for name in ADMISSION}
    return load_fleet(options["fleet_file"], lambda options: _pool_deployment({**options, **door}), options["gpu"])


def _pool_deployment(options: Mapping[str, Any]) -> Deployment:
    if options["gpu"] is None:
        raise UsageError("needs gpu")
    if isinstance(options["max_num_seqs"], float):
        raise UsageError("max-num-seqs: knee:... is for a deployment alone")
    if options["posterior"] is not None:
        raise UsageError("posterior: a fleet takes the packaged rates")
    return deployment_of(options)


def _lora(options: Mapping[str, Any]) -> Lora | None:
    """The adapters of the options. UsageError for what needs enable-lora."""
    from sim.specs.lora import Lora

    given = {name: options[option] for name, option in LORA.items() if options[option] is not None}
    if given and not options["enable_lora"]:
        raise UsageError(f"--engine-option {LORA[next(iter(given))].replace('_', '-')} needs enable-lora")
    return Lora(**given) if options["enable_lora"] else None


def attention_fields(policy_option: tuple[str, int], host: float | None) -> dict[str, Any]:
    """Attention policy and place of KV, as fields of Limits."""
    from sim.specs.attention_policy import blocks, dense, pages, sink_window

    kind, k = policy_option
    if host is not None and not 0.0 < host < 1e6:
        raise UsageError(f"host-kv must be gigabytes above 0, got {host:g}")
    place: Any = "hbm" if host is None else "host"
    made = {"dense": dense, "sink-window": sink_window}.get(kind)
    policy = made(place) if made else {"pages": pages, "blocks": blocks}[kind](k, place)
    return {"attention": policy, "host_kv_bytes": 1e9 * (host or 0.0)}


def _drafting(options: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's own options, and the draft model that belongs to them, as fields of Limits."""
    from sim import get_model

    given = settings("--engine-option", options["engine_option"])
    if options["draft_model"] is None:
        return {"options": given}
    return {"options": {"drafter": "draft_model", **given}, "draft": get_model(options["draft_model"])}


def settings(option: str, pairs: tuple[str, ...]) -> dict[str, Any]:
    """NAME=VALUE settings, values as YAML scalars (true, 512, 0.1)."""
    found: dict[str, Any] = {}
    for pair in pairs:
        from sim.yaml_text import read_yaml

        name, equals, value = pair.partition("=")
        try:
            parsed = read_yaml(value, option)
        except UsageError:
            parsed = None
        if not (name and equals) or not isinstance(parsed, bool | int | float | str):
            raise UsageError(f"{option} needs NAME=VALUE with a number, true/false or a word, got {pair!r}")
        found[name.replace("-", "_")] = parsed
    return found
