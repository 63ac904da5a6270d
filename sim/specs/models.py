"""The model catalogue: published configurations, read by the same code that reads anybody's config.json."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from sim.specs import hf_config
from sim.specs.lookup import build_index, given_path, key, unknown
from sim.specs.model import ModelSpec

_FILE = Path(__file__).parent / "data" / "models.json"


def get_model(name_or_path: str) -> ModelSpec:
    """A model by catalogue name or alias, config.json file, folder, or `ORG/NAME` in the local hub cache, tried in that order.

    Names ignore case, spaces, dashes and underscores. Raises UsageError for anything else.
    """
    canonical = _index().get(key(name_or_path))
    if canonical:
        return _catalogue_spec(canonical)
    path = given_path(name_or_path, (".json",))
    if path:
        return hf_config.load_spec(path)
    cached = hf_config.find_cached(name_or_path)
    if cached:
        return hf_config.load_spec(cached, name=name_or_path)
    more = "; or the path of a config.json, or ORG/NAME in the local hub cache"
    raise unknown("model", name_or_path, _index(), list_models(), more)


def list_models() -> list[str]:
    """Catalogue names, in catalogue order."""
    return list(_catalogue())


def model_aliases(name: str) -> list[str]:
    """Other names of a catalogue model: hub names first."""
    return list(_catalogue()[name]["aliases"])


def published_params(name: str) -> int | str:
    """The published parameter count of a catalogue model: exact, or rounded text such as `80B`."""
    count: int | str = _catalogue()[name]["published_params"]
    return count


def catalogue_config(name: str) -> dict[str, Any]:
    """The configuration fields behind a catalogue model."""
    return dict(_catalogue()[name]["config"])


@cache
def _catalogue() -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = json.loads(_FILE.read_text(encoding="utf-8"))
    return entries


@cache
def _index() -> dict[str, str]:
    # A hub name also answers to its last part: `Qwen2.5-7B-Instruct` for `Qwen/Qwen2.5-7B-Instruct`.
    return build_index(
        (name, [form for alias in entry["aliases"] for form in (alias, alias.rsplit("/", 1)[-1])]) for name, entry in _catalogue().items()
    )


@cache
def _catalogue_spec(name: str) -> ModelSpec:
    entry = _catalogue()[name]
    return hf_config.spec_from_config(entry["config"], name, entry["source"])
