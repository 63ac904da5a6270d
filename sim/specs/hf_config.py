"""Find a Hugging Face `config.json` on this machine (file, folder or local hub cache, never the network) and read it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sim.errors import UsageError
from sim.files import text_of
from sim.json_text import read_json
from sim.specs import quantisation
from sim.specs.architectures import build
from sim.specs.fields import Fields
from sim.specs.model import ModelSpec
from sim.specs.quantisation import Quantisation
from sim.specs.stored import with_checkpoint

MOST_BYTES = 1 << 24
# Where exports of modelopt, AutoGPTQ and AutoAWQ state their quantisation beside a configuration that does not
_BESIDE = {"hf_quant_config.json": "modelopt", "quantize_config.json": "gptq", "quant_config.json": "awq"}


def spec_from_config(config: Mapping[str, Any], name: str, source: str, where: str | None = None) -> ModelSpec:
    """A ModelSpec from configuration fields; `where` opens error messages. Raises UsageError naming the field."""
    fields = Fields(config, where or name)
    spec = replace(build(fields), name=name, source=source)
    return with_checkpoint(spec, None if spec.expert_bits else _quantisation(fields))


def _quantisation(fields: Fields) -> Quantisation | None:
    """Quantisation that a configuration states, at its top or in its text part."""
    found = quantisation.read(fields)
    for name in ("text_config", "llm_config", "language_config"):
        if found is None and fields.has(name):
            found = quantisation.read(fields.section(name))
    return found


def load_spec(path: Path, name: str | None = None) -> ModelSpec:
    """A ModelSpec from a config.json or the folder that holds one."""
    file = path / "config.json" if os.path.isdir(path) else path
    label = name or (file.parent.name if file.name == "config.json" else file.stem) or str(file)
    config = read_config(file)
    stated = config.get("quantization_config") or config.get("compression_config")
    for beside, method in _BESIDE.items() if file.name.endswith("config.json") and not stated else ():
        other = file.with_name(file.name.removesuffix("config.json") + beside)
        if other.is_file():
            found = read_config(other)
            config["quantization_config"] = {"quant_method": "awq" if "zero_point" in found else method, **found}
            break
    return spec_from_config(config, label, f"{file}", where=str(file))


def read_config(file: Path) -> dict[str, Any]:
    """The JSON object in `file`. Raises UsageError when it cannot be read or is not one."""
    try:
        config = read_json(text_of(file, MOST_BYTES))
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}") from error
    except UsageError:
        raise
    except ValueError as error:
        raise UsageError(f"{file}: not JSON: {error}") from error
    if not isinstance(config, dict):
        raise UsageError(f"{file}: top level must be a mapping of fields")
    return config


def hub_cache() -> Path:
    """The local hub cache, by the rules of the hub's own client: HF_HUB_CACHE, then HF_HOME, then XDG_CACHE_HOME, then ~."""
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(cache).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root).expanduser() if root else Path.home() / ".cache") / "huggingface" / "hub"


def find_cached(name: str) -> Path | None:
    """The config.json of `ORG/NAME` in the local hub cache: the revision `main` points at, else the newest snapshot."""
    parts = name.split("/")
    if len(parts) != 2 or not all(0 < len(part) <= 96 and part not in {".", ".."} for part in parts):
        return None
    repo = hub_cache() / f"models--{parts[0]}--{parts[1]}"
    main = repo / "refs" / "main"
    if main.is_file():
        config = repo / "snapshots" / main.read_text(encoding="utf-8").strip() / "config.json"
        if config.is_file():
            return config
    configs = [file for file in repo.glob("snapshots/*/config.json") if file.is_file()]
    return max(configs, key=lambda file: file.stat().st_mtime, default=None)
