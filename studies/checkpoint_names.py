"""Writes the packaged table of checkpoints (sim/specs/data/checkpoints.json) from a list of hub ids and the configurations of their shapes.

    python -m studies.checkpoint_names REFERENCE    # a folder with hub_ids.csv, shape_sources.csv and shapes/*.json

Fields of a configuration that change nothing are left out, and so are names that a rule of sim.specs.hub_names already reads.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sim.errors import UsageError
from sim.files import package_path, write_text
from sim.specs import checkpoint_names
from sim.specs.hf_config import spec_from_config
from sim.specs.hub_names import HubName, readings, sizes, words
from sim.specs.lookup import build_index, key
from sim.specs.models import get_model, list_models, model_aliases
from studies.program import program

# The list's words for a format -> ours; what is not here is taken as the rule says
FORMATS = {
    "bf16": "",
    "bnb-nf4": "bnb-nf4",
    "mlx-4bit": "mlx-4bit",
    "mlx-8bit": "mlx-8bit",
    "mlx-mxfp4": "mlx-mxfp4",
    "fp8-block": "fp8-block",
    "awq-int4-g128": "awq-int4",
    "awq-int4": "awq-int4",
    "awq-int8": "awq-int8",
    "gptq-int4-g128": "gptq-int4",
    "gptq-int8-g128": "gptq-int8",
    "nvfp4": "nvfp4",
    "nvfp4 (mixed precision, modelopt)": "nvfp4",
    "mxfp4": "mxfp4",
    "mxfp4 (compressed-tensors)": "mxfp4",
    "mxfp8": "mxfp8",
    "fp8-tensor": "fp8-tensor",
    "fp8-channel": "fp8-channel",
    "compressed-tensors w8a8 (fp8 channel, dynamic)": "fp8-channel",
    "compressed-tensors w8a8": "w8a8",
    "compressed-tensors w4a16": "w4a16",
}

# Configurations that lack the word, of models whose published size says that one table serves input and output
TIED = {"Phi-4-mini": "3.8B", "Qwen2.5-VL-3B": "3.8B", "Qwen2.5-Math-1.5B": "1.5B", "Qwen3.5-2B": "2B", "SmolLM2-1.7B": "1.7B"}


@program("checkpoint_names", "REFERENCE")
def main(argv: Sequence[str]) -> int:
    source = Path(argv[0])
    rows = list(csv.DictReader((source / "hub_ids.csv").read_text(encoding="utf-8").splitlines()))
    grades = {row["shape"]: row for row in csv.DictReader((source / "shape_sources.csv").read_text(encoding="utf-8").splitlines())}
    shapes: dict[str, Any] = {}
    for file in sorted((source / "shapes").glob("*.json")):
        try:
            config = pruned(json.loads(file.read_text(encoding="utf-8")))
        except UsageError as error:
            print(f"left out: {file.stem}: {error}")
            continue
        if wrong := _off(file.stem, config):
            print(f"left out: {file.stem}: {wrong}")
            continue
        said = f"{grades[file.stem]['grade']}: {grades[file.stem]['source']}"
        if file.stem in TIED:
            (config.get("text_config") or config)["tie_word_embeddings"] = config["tie_word_embeddings"] = True
            said += f"; tied by the published {TIED[file.stem]}"
        shapes[file.stem] = {"source": said, "config": config}
    table: dict[str, Any] = {"shapes": shapes, "names": {}, "stored": {}, "contexts": {}}
    _names(table, [row for row in rows if row["base"] in shapes or row["base"] in list_models()])
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).replace('},"', '},\n"')
    write_text(package_path("sim.specs", "data", "checkpoints.json"), text + "\n")
    print(f"{len(rows)} ids, {len(shapes)} shapes, {sum(map(len, table['names'].values()))} names, {len(text.encode()):,} bytes")
    return 0


def _off(name: str, config: dict[str, Any]) -> str:
    """What is wrong with a configuration whose parameters are not those that its name says; counts of experts' shapes are rounded more."""
    billions = [float(size[:-1]) for size in sizes(words(name)) if size[0].isdigit() and size.endswith("b") and "x" not in size]
    params = spec_from_config(config, "", "").params / 1e9
    return f"{params:.4g}B parameters" if billions and billions[0] >= 20 and not 0.85 < params / billions[0] < 1.15 else ""


def pruned(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration without the fields that change nothing of what is read."""
    kept = json.loads(json.dumps(config))
    whole = spec_from_config(kept, "", "")
    for holder, name in list(_fields(kept)):
        if name in ("model_type", "quantization_config"):
            continue
        value = holder.pop(name)
        try:
            if spec_from_config(kept, "", "") == whole:
                continue
        except (UsageError, AttributeError):
            pass
        holder[name] = value
    return dict(kept)


def _fields(value: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """(mapping, key) of every field, inner ones after those that hold them."""
    if isinstance(value, dict):
        for name, each in list(value.items()):
            yield value, name
            if name in value:
                yield from _fields(each)
    elif isinstance(value, list):
        for each in value:
            yield from _fields(each)


def _names(table: dict[str, Any], rows: Sequence[dict[str, str]]) -> None:
    """Stems, formats and contexts that no rule tells, of these ids."""
    checkpoint_names._table = lambda: table  # type: ignore[assignment]
    checkpoint_names._stems.cache_clear()
    index = build_index(
        (name, [form for alias in model_aliases(name) for form in (alias, alias.rsplit("/", 1)[-1])]) for name in list_models()
    )
    for row in sorted(rows, key=lambda row: len(row["hub_id"])):
        name, base = row["hub_id"], row["base"]
        try:
            found = checkpoint_names.find(name, index)
        except UsageError:
            found = None
        if found is not None and found.base in index.values() and not found.relative:
            continue  # the catalogue's own
        if found is None or found.base != base or found.relative:
            stem = _shortest_stem(name)
            if stem is None:
                print(f"not read: {name} ({base})")
                continue
            table["names"].setdefault(base, []).append(stem)
            checkpoint_names._stems.cache_clear()
    for row in rows:  # the same without a word such as Instruct
        for each in list(_readings(row["hub_id"]))[1:]:
            known = words(each.stem)
            if (
                each.stem in row["hub_id"].split("/")[-1].split("_")[0]
                and (sizes(known) or len(known) > 2)
                and checkpoint_names.find(each.stem, index) is None
            ):
                table["names"].setdefault(row["base"], []).append(each.stem)
                checkpoint_names._stems.cache_clear()
    _stored_and_contexts(table, rows, index)


def _stored_and_contexts(table: dict[str, Any], rows: Sequence[dict[str, str]], index: Mapping[str, str]) -> None:
    """Formats and contexts that no rule tells."""
    by_stem: dict[str, set[tuple[str, str]]] = {}
    for row in rows:
        try:
            found = checkpoint_names.find(row["hub_id"], index)
        except UsageError as error:
            print(error)
            continue
        if found is None:
            continue
        stated = FORMATS.get(row["format"])
        native = _stored_narrow(table, found.base)
        ours = "" if found.format == "16" and not native else found.format
        kv8 = row["kv_dtype"] == "fp8"
        if stated is not None and (stated, kv8) != (ours, found.kv8) and not (native and not ours):
            print(f"stored otherwise: {row['hub_id']}: {row['format']} {row['kv_dtype']} (by rule: {ours} {found.kv8})")
            table["stored"][key(row["hub_id"])] = (stated or "16") + "/kv8" * kv8
        if row["context_length"].isdecimal():
            read_as = list(readings(row["hub_id"]))
            plain = (each.stem for each in read_as if each.format == read_as[-1].format and not each.stem.lower().endswith("-gguf"))
            stem = next(plain)  # its format's suffixes off, all else kept
            by_stem.setdefault(key(stem), set()).add((found.base, row["context_length"]))
    for stem, said in by_stem.items():
        contexts = {int(length) for _, length in said}
        base = next(iter(said))[0]
        if len(contexts) == 1 and stem not in index and contexts != {_context(table, base)}:
            table["contexts"][stem] = contexts.pop()


def _context(table: dict[str, Any], base: str) -> int:
    spec = spec_from_config(table["shapes"][base]["config"], "", "") if base in table["shapes"] else get_model(base)
    return spec.max_context


def _stored_narrow(table: dict[str, Any], base: str) -> bool:
    """Whether the base's own weights have fewer than 16 bits."""
    spec = spec_from_config(table["shapes"][base]["config"], "", "") if base in table["shapes"] else get_model(base)
    return spec.checkpoint is not None or spec.expert_bits is not None


def _readings(name: str) -> list[HubName]:
    try:
        return list(readings(name))
    except ValueError:
        return []


def _shortest_stem(name: str) -> str | None:
    """The stem with its format's suffixes taken off, and no word that may say another shape."""
    found = None
    for each in _readings(name):
        found = each.stem if found is None or len(each.stem) < len(found) else found
        if not re.search(r"[-_](instruct|chat|it|base|hf|awq|gptq|fp8|gguf|bnb|4bit|8bit)", each.stem, re.IGNORECASE):
            return each.stem
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
