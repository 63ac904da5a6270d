"""Pools of a deployment file: each server of a docker compose, Kubernetes, KServe, llm-d, Dynamo or Ray file as a pool of a fleet file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from sim.errors import UsageError
from sim.yaml_text import read_yaml
from simctl.options.from_deployment import (
    ROLES,
    Found,
    commands_of,
    documents_of,
    found_of,
    front_of,
    listing,
    read_server,
    role_of_words,
    servers_apart,
    servers_of_text,
)
from simctl.options.option_groups import members_of


def pools_of(path: Path, text: str) -> dict[str, Any] | None:
    """A fleet file's mapping of a deployment file's servers; None where there is none in it. UsageError naming what cannot be read."""
    name, servers = path.name, servers_of_text(path, text)
    found: list[tuple[str, Found]] = []
    if servers is not None:
        read = [(role_of_words(each.words) or "serve", found_of(path, [each])) for each in servers]
    else:
        units = [unit for document in documents_of(path, text) for unit in servers_apart(name, document)]
        if "prefill" in (kinds := {role for role, _ in units}) and "decode" not in kinds:  # what works with a prefill server decodes
            units = [("prefill" if role == "prefill" else "decode", part) for role, part in units]
        read = [(role, read_server(name, [part])) for role, part in units]
    for role, server in read:
        same = next((each for kind, each in found if kind == role and _settings(each) == _settings(server)), None)
        if same is None:
            found.append((role, server))
        else:  # one service a replica
            same.options["replicas"] = same.options.get("replicas", 1) + server.options.get("replicas", 1)
    if not found:
        return None
    _check_models(name, found)
    roles = [role for role, _ in found]
    names = [role if roles.count(role) == 1 else f"{role}-{roles[:i].count(role)}" for i, role in enumerate(roles)]
    unused = list(dict.fromkeys(each for _, server in found for each in server.unused))
    front = front_of(text)
    for _, server in found:
        server.options |= front
    labelled = [(f"{pool} ", server.options) for pool, (_, server) in zip(names, found, strict=True)]
    for line in listing(name, labelled if len(labelled) > 1 else [("", found[0][1].options)], unused):
        click.echo(line, err=True)
    return {"pools": [_pool(pool, role, server) for pool, (role, server) in zip(names, found, strict=True)]}


def _check_models(name: str, found: list[tuple[str, Found]]) -> None:
    """UsageError where prefill and decode serve different models, or one of them is not there."""
    models = {role: {str(server.options["model"]) for kind, server in found if kind == role} for role in ROLES}
    if models["prefill"] and models["decode"] and models["prefill"] != models["decode"]:
        raise UsageError(f"{name}: prefill serves {', '.join(models['prefill'])}, decode {', '.join(models['decode'])}: one model has both")
    for role, other in (ROLES, ROLES[::-1]):
        if models[role] and not models[other]:
            raise UsageError(f"{name}: a {role} server, and no {other} server that it works with")


def is_fleet(path: Path, text: str) -> bool:
    """Whether a text is a fleet file: one mapping with pools, or none that holds a server."""
    name = path.name
    if servers_of_text(path, text) is not None or re.search(r"^---\s*$", text, flags=re.MULTILINE):
        return False
    document = read_yaml(text, name)
    return not isinstance(document, dict) or "pools" in document or not any(commands_of(name, each) for each in documents_of(path, text))


def _settings(found: Found) -> dict[str, Any]:
    return {key: value for key, value in found.options.items() if key != "replicas"}


def _pool(name: str, role: str, server: Found) -> dict[str, Any]:
    """A pool of a fleet file, its options under the names that they have there."""
    from simctl.from_options.deployments import settings
    from simctl.options.simulate_options import POOL

    keys = {option.name: option.opts[0].lstrip("-") for option in members_of(POOL.params)} | {
        "replicas": "replicas",
        "max_prompt_tokens": "max-prompt-tokens",
    }
    own = {"router-options": settings("router-options", said)} if (said := server.options.get("router_option")) else {}
    return {"name": name, "role": role, **{keys[key]: value for key, value in server.options.items() if key in keys}, **own}
