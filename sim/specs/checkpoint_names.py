"""Checkpoints by their hub names: a base shape, and how the name says that its weights are stored. Nothing is downloaded."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

from sim.errors import UsageError
from sim.files import package_path
from sim.specs import hf_config, nvfp4_files
from sim.specs.fields import Fields
from sim.specs.hub_names import FORMATS, HubName, inner_format, is_named_after, readings, sizes, words
from sim.specs.lookup import did_you_mean, key
from sim.specs.model import ModelSpec
from sim.specs.quantisation import read
from sim.specs.stored import gguf_checkpoint, with_checkpoint

HOW = "or give the path of its config.json (--model FILE), or ORG/NAME in the local hub cache"


class Named(NamedTuple):
    """A base's name, the format by the name's rule ("" for the base's own) and by which rule the name was read: none, or as a relative."""

    base: str
    format: str = ""
    kv8: bool = False
    relative: bool = False
    context: int | None = None


def find(name: str, catalogue: Mapping[str, str]) -> Named | None:
    """What a name means; None where nothing here is it. `catalogue` is the index of the model catalogue, key to name.

    Raises UsageError where its suffix says a format that nothing serves, or where it is named after two bases.
    """
    table, stems = _table(), _stems()
    stored = table["stored"].get(key(name))
    try:
        read_as = list(readings(name))
    except ValueError as error:
        raise UsageError(f"model {name!r}: {error}") from None
    context = next((table["contexts"][key(each.stem)] for each in read_as if key(each.stem) in table["contexts"]), None)
    for each in read_as:
        if base := catalogue.get(key(each.stem)) or stems.get(key(each.stem)):
            form, kv8 = (each.format, each.kv8) if stored is None else (stored.removesuffix("/kv8"), stored.endswith("/kv8"))
            return Named(base, form, kv8, context=context)
    for each in read_as:  # qwen3:30b: the one of that size, whose active part is not said
        sized = [base for base, _ in _bases(catalogue) if re.sub(r"a\d+b$", "", key(base)) == key(each.stem)]
        if len(sized) == 1:
            return Named(sized[0], each.format, each.kv8, context=context)
    return _relative(name, read_as[-1], catalogue) if read_as else None


def _relative(name: str, reading: HubName, catalogue: Mapping[str, str]) -> Named | None:
    """A fine-tune by the base that its name holds, the longest; UsageError where two bases fit equally."""
    own = words(name.rpartition("/")[2].partition(":")[0])
    fits = {base: known for base, known in _bases(catalogue) if is_named_after(own, known) and _tells(known)}
    if not fits:
        return None
    weights = {base: _weight(own, known) for base, known in fits.items()}
    best = sorted(base for base, weight in weights.items() if weight == max(weights.values()))
    if len(best) > 1:
        raise UsageError(f"model {name!r} is named after {best[0]} and {best[1]}: say which, {HOW}")
    try:
        form = reading.format or inner_format(name)
    except ValueError as error:
        raise UsageError(f"model {name!r}: {error}") from None
    return Named(best[0], form, reading.kv8, relative=True)


def _tells(known: tuple[str, ...]) -> bool:
    """Whether words tell one model of a family: a size, three of them, or a version with a letter or a point (deepseek v3.1, glm 4.6)."""
    return bool(sizes(known)) or len(known) > 2 or (len(known) == 2 and re.search(r"[a-z]\d|\d\.\d", known[1]) is not None)


def _weight(own: tuple[str, ...], known: tuple[str, ...]) -> tuple[bool, int, int]:
    """How well a name is that of a base: by its size, the words they share, and the words that stand together at the base's front."""
    together = max(n for n in range(len(known) + 1) for i in range(len(own)) if own[i : i + n] == known[:n])
    return bool(sizes(known)), len(known), together


def _bases(catalogue: Mapping[str, str]) -> Iterable[tuple[str, tuple[str, ...]]]:
    for base in dict.fromkeys((*catalogue.values(), *_table()["shapes"])):
        yield base, words(base)


def spec_of(name: str, named: Named, base: ModelSpec) -> ModelSpec:
    """The base's shape under this name, with its weights as the name says."""
    said = [f"{name}: shape of {base.name}" + (", after which it is named" if named.relative else "")]
    spec = base
    if named.format == "16" or (named.format == "gguf:16" and not base.expert_bits):
        spec, said = replace(spec, checkpoint=None, expert_bits=None), [*said, "weights of 16 bits"]
    elif named.format == "gguf:16":
        said.append("experts as their publisher stores them, the rest of 16 bits")
    elif named.format.startswith("gguf:"):
        kind = named.format[5:] or ("mxfp4_moe" if base.expert_bits else "q4_k_m")
        spec = replace(spec, checkpoint=None, expert_bits=None)
        spec, said = replace(spec, checkpoint=gguf_checkpoint(spec, kind)), [*said, f"weights {kind} (GGUF)"]
    elif named.format:
        config = nvfp4_files.config_of(name, base.name) if named.format == "nvfp4" else FORMATS[named.format]
        config = config | ({"kv_cache_quant_algo": "FP8"} if named.kv8 else {})
        spec = replace(spec, checkpoint=None, expert_bits=None)
        spec = with_checkpoint(spec, read(Fields({"quantization_config": config}, name)))
        said.append(f"weights {named.format}{', KV cache fp8' if named.kv8 else ''}")
    if not named.format and not named.relative:
        return spec if named.context is None else replace(spec, max_context=named.context)
    note = f"{', '.join(said)} by the rule of its name; no file of it was read."
    source = f"hub name {name}: shape of {base.name} ({base.source})"
    label = name.rpartition("/")[2]
    return replace(spec, name=label, source=source, notes=(note, *spec.notes), max_context=named.context or spec.max_context)


def config_of(base: str) -> dict[str, Any]:
    """Configuration fields of a base of the table."""
    return dict(_table()["shapes"][base]["config"])


def bases() -> list[str]:
    """Names of the table's bases."""
    return list(_table()["shapes"])


def unknown_model(name: str, catalogue: Mapping[str, str]) -> UsageError:
    """The error for a name that nothing here is: the two nearest, and how to give a configuration."""
    known = {key(base): base for base in (*catalogue.values(), *_table()["shapes"])} | {**_stems(), **catalogue}
    last = re.sub(r":", "-", name.rpartition("/")[2])
    own, bases = words(last), list(dict.fromkeys(known.values()))
    family = next((word for word in own if word.isalpha() and len(word) > 2), "")
    related = {each: base for each, base in known.items() if family and family in words(base)}
    hint = did_you_mean(last, (), most=2, cutoff=0.0, index=related) or _of_like_size(own, bases)
    short = name if len(name) <= 80 else name[:77] + "..."
    return UsageError(f"unknown model {short!r}{hint} `simctl models` lists {len(set(known.values()))} shapes; {HOW}")


def _of_like_size(own: tuple[str, ...], bases: Iterable[str]) -> str:
    """That none of the family is known, and the two bases whose names say about as many parameters, within a third."""
    size = _billions(own)
    near = sorted((abs(math.log(other / size)), base) for base in bases if size and (other := _billions(words(base))))
    names = [repr(base) for off, base in near if off < 0.3][:2]
    return "; none of its family is here" + (f", of its size are {' and '.join(names)};" if names else ";")


def _billions(own: tuple[str, ...]) -> float:
    """Billions of parameters that the words of a name say, 0 for none."""
    said = (re.fullmatch(r"(\d+(?:\.\d+)?)([bmt])", word) for word in own)
    return max((float(each[1]) * {"m": 1e-3, "b": 1.0, "t": 1e3}[each[2]] for each in said if each), default=0.0)


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(package_path("sim.specs", "data", "checkpoints.json").read_text(encoding="utf-8"))
    return table


@cache
def _stems() -> dict[str, str]:
    """{key: base} of all stems, and of the bases of the table."""
    table = _table()
    found = {key(base): base for base in table["shapes"]}
    for base, stems in table["names"].items():
        found |= {key(stem): base for stem in stems}
    return found


@cache
def shape(base: str) -> ModelSpec:
    """A base that the table has, by its name."""
    entry = _table()["shapes"][base]
    return hf_config.spec_from_config(entry["config"], base, entry["source"])
