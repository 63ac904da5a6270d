"""The model catalogue: published configurations, read by the same code that reads anybody's config.json."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from sim.specs import hf_config
from sim.specs.lookup import build_index, given_path, key
from sim.specs.model import ModelSpec

# Ollama's names: its weights are not those of 16 bits that the catalogue has
TAGGED = re.compile(r"[a-z0-9._-]+:[a-z0-9._-]+", re.IGNORECASE)
_FILE = Path(__file__).parent / "data" / "models.json"


def get_model(name_or_path: str) -> ModelSpec:
    """A model by catalogue name or alias, config.json file, folder, `ORG/NAME` in the local hub cache, or the name of a checkpoint of a
    known shape (sim.specs.checkpoint_names), tried in that order.

    Names ignore case, spaces, dashes and underscores. Raises UsageError for anything else, naming the two nearest.
    """
    canonical = _index().get(key(name_or_path))
    if canonical and not TAGGED.fullmatch(name_or_path):
        return _in_its_context(name_or_path, canonical)
    path = given_path(name_or_path, (".json",))
    if path:
        return hf_config.load_spec(path)
    cached = hf_config.find_cached(name_or_path)
    if cached:
        return hf_config.load_spec(cached, name=name_or_path)
    from sim.specs import checkpoint_names  # 90 kB that only such a name needs

    name_or_path = re.sub(r"(https?://\S+?)/(tree|blob|resolve)/.*", r"\1", name_or_path)
    named = checkpoint_names.find(name_or_path, _index())
    if named is None:
        raise checkpoint_names.unknown_model(name_or_path, _index())
    base = _catalogue_spec(named.base) if named.base in _catalogue() else checkpoint_names.shape(named.base)
    return checkpoint_names.spec_of(name_or_path, named, base)


def list_models() -> list[str]:
    """Catalogue names, in catalogue order."""
    return list(_catalogue())


def list_shapes() -> list[str]:
    """Names of the shapes that checkpoints are read as: the catalogue's, then those of the table of checkpoints."""
    from sim.specs import checkpoint_names

    return list(dict.fromkeys((*_catalogue(), *checkpoint_names.bases())))


def model_aliases(name: str) -> list[str]:
    """Other names of a catalogue model: hub names first."""
    return list(_catalogue()[name]["aliases"])


def published_params(name: str) -> int | str:
    """The published parameter count of a catalogue model: exact, or rounded text such as `80B`."""
    count: int | str = _catalogue()[name]["published_params"]
    return count


def catalogue_config(name: str) -> dict[str, Any]:
    """The configuration fields behind a catalogue model, or a base of the table of checkpoints."""
    from sim.specs import checkpoint_names

    return dict(_catalogue()[name]["config"]) if name in _catalogue() else checkpoint_names.config_of(name)


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


def _in_its_context(alias: str, name: str) -> ModelSpec:
    """A catalogue model under an alias, whose file may declare a shorter context than the base's."""
    for each, length in _catalogue()[name].get("contexts", {}).items():
        if key(alias) in (key(each), key(each.rsplit("/", 1)[-1])):
            return replace(_catalogue_spec(name), max_context=length)
    return _catalogue_spec(name)


@cache
def _catalogue_spec(name: str) -> ModelSpec:
    entry = _catalogue()[name]
    return hf_config.spec_from_config(entry["config"], name, entry["source"])
