"""The GPU catalogue (JSON) and users' own datasheets (YAML): GpuSpec out, every field checked.

Fields of an entry, one per card (`simctl gpus --yaml NAME` prints one as a start for your own):
* memory_bytes: what nvidia-smi (rocm-smi) reports as total, ECC on, where the note says so: MiB x 2**20; else the datasheet
* memory_bandwidth: bytes/s, datasheet peak
* flops: dense flop/s by dtype, no sparsity; tensor cores for 16 bits and below, with 32-bit accumulation
* matrix_units: "wgmma" or "tcgen05" where only kernels written for their instructions fill them (Hopper, Blackwell of data centres),
  "sm80" where they are half as wide, and twice other cards' (A100, A30)
* sibling_of: entry of the same chip: what was learnt of that one is scaled by the two datasheets where this one was not measured
* host_link_bandwidth: bytes/s per direction after line coding: PCIe x16 gen 3 15.75e9, gen 4 31.5e9, gen 5 63e9
* gpu_link_bandwidth: bytes/s per direction per GPU over NVLink or Infinity Fabric; null when GPUs only share PCIe
* power_w: W, the card's power limit as it is sold; null where card and host share one
* gpus_per_node: GPUs of one node, 8 where nothing is said
* nvlink_domain: GPUs that those links join, the node's where nothing is said; 1 where the link is a bridge to be bought
* price_per_hour: USD per GPU-hour, on-demand list price at the stated vendor and month; where none is recorded, that of `market`
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from sim.errors import UsageError
from sim.files import text_of
from sim.specs.fields import Fields
from sim.specs.gpu import GpuSpec
from sim.specs.lookup import build_index, did_you_mean, given_path, key, unknown

_FILE = Path(__file__).parent / "data" / "gpus.json"
PRICES = Path(__file__).parent / "data" / "prices.json"  # of many providers: studies/gpu_prices.py makes it
BOUGHT = "bought, over three years, without power and hosting"  # the price of a card that nobody rents out
FLOPS_DTYPES = ("fp32", "fp16", "bf16", "int8", "fp8", "fp4")
MATRIX_UNITS = ("", "sm80", "wgmma", "tcgen05")
REQUIRED = ("name", "memory_bytes", "memory_bandwidth", "flops", "host_link_bandwidth")
OPTIONAL = (
    "gpu_link_bandwidth",
    "l2_bytes",
    "power_w",
    "gpus_per_node",
    "nvlink_domain",
    "unified_memory",
    "matrix_units",
    "sibling_of",
    "price_per_hour",
    "price_date",
    "price_source",
    "source",
    "note",
    "aliases",
)
# A name that says less than one card: an answer for the wrong one would look just as good.
_AMBIGUOUS = {"a100": ("A100-40G", "A100-80G", "A100-80G-PCIe")}
# nvidia-smi and people put the maker's words in front of the name.
_MAKER = re.compile(r"^(?:nvidia|amd|geforce|tesla|instinct|[\s_-])+", re.IGNORECASE)

_SEVERAL = re.compile(r"\s*(?:(?P<first>\d+)\s*[x*×]\s*(?P<of>.+)|(?P<card>.+?)\s*[x*×]\s*(?P<last>\d+))\s*", re.IGNORECASE)

# Words of a name -> why none of the catalogue is it
_NOT_A_CARD = {
    "MIG": "a MIG slice is a share of a card",
    "laptop": "a laptop GPU has other silicon than the desktop card",
    "M5": "Apple publishes no rate of M5's matrix units",
    r"(Arc[\s_-]*)?(Pro[\s_-]*)?B70": "no datasheet of it is recorded here",
}


def get_gpu(name_or_yaml_path: str) -> GpuSpec:
    """A GPU by catalogue name or alias (as people or nvidia-smi write it), or from a YAML file: `FILE`, or `FILE:NAME` among several.

    Raises UsageError for an unknown or ambiguous name and for a file with a wrong field.
    """
    found = _find(name_or_yaml_path, _index())
    if found:
        return _catalogue()[found]
    file, _, name = _split_path(name_or_yaml_path)
    if file is not None:
        return _pick(load_gpus(file), name, str(file))
    bare = key(_MAKER.sub("", name_or_yaml_path))
    if bare in _AMBIGUOUS:
        raise UsageError(f"ambiguous GPU {name_or_yaml_path!r}: say which of {', '.join(_AMBIGUOUS[bare])}")
    if (several := _SEVERAL.fullmatch(name_or_yaml_path)) and (found := _find(several["of"] or several["card"], _index())):
        count = several["first"] or several["last"]
        raise UsageError(f"{name_or_yaml_path!r} is {count} GPUs: give --gpu {found} with --tp {count}, or with --replicas {count}")
    for word, why in _NOT_A_CARD.items():
        if re.search(rf"\b{word}\b", name_or_yaml_path, re.IGNORECASE):
            raise UsageError(f"unknown GPU {name_or_yaml_path!r}: {why}: describe it in a YAML file (see `simctl gpus --yaml`)")
    raise unknown("GPU", name_or_yaml_path, _index(), list_gpus(), "; or the path of a YAML file (see `simctl gpus --yaml`)")


def matrix_units_of(gpu: GpuSpec) -> str:
    """Its matrix units' instruction, or that of the chip it is of."""
    return gpu.matrix_units or (get_gpu(gpu.sibling_of).matrix_units if gpu.sibling_of else "")


def spare_power(gpu: GpuSpec) -> float:
    """Power per 16-bit flop over that of the catalogue's card of the same chip; 1 where that is not more, or one of them is not known.

    A chip that throttles at full rate has it to spare on a card whose matrix units run at half of it (RTX 4090 beside L40S).
    """
    if not gpu.sibling_of or not gpu.power_w:
        return 1.0
    chip = get_gpu(gpu.sibling_of)
    rates = [max(each.flops.get("bf16", 0.0), each.flops.get("fp16", 0.0)) for each in (gpu, chip)]
    return max(1.0, gpu.power_w / rates[0] / (chip.power_w / rates[1])) if chip.power_w and all(rates) else 1.0


def market(name: str) -> tuple[float, str, str] | None:
    """(USD per GPU-hour, month, what it is) of a catalogue card over many providers' lists; None for one that none of them has."""
    if (found := _prices().get(name)) is None:
        return None
    if found["kind"] == "purchase":
        return found["usd_per_hour"], found["date"], BOUGHT
    kind, count = found["kind"].replace("_", "-"), found["providers"]
    said = f"median of {count} providers' {kind} lists" if count > 1 else f"one provider's {kind} list"
    return found["usd_per_hour"], found["date"], f"{said}, {found['low']:g} to {found['high']:g}" if count > 1 else said


def list_gpus() -> list[str]:
    """Catalogue names, in catalogue order."""
    return list(_catalogue())


def find_gpu(name: str, specs: Sequence[GpuSpec]) -> GpuSpec | None:
    """The one of `specs` that goes by `name`, spelt like a catalogue name; None when there is none."""
    found = _find(name, build_index((spec.name, spec.aliases) for spec in specs))
    return next((spec for spec in specs if spec.name == found), None)


def load_gpus(file: Path) -> list[GpuSpec]:
    """The GPUs of a YAML file: one mapping, a list of them, or a mapping `gpus:` to such a list. Raises UsageError naming the field."""
    return parse_gpus(_read(file), str(file), origin=str(file))


def parse_gpus(data: object, where: str, origin: str) -> list[GpuSpec]:
    """GpuSpecs from parsed YAML; `where` opens error messages."""
    if isinstance(data, dict) and "gpus" in data:
        Fields(data, where).only(("gpus",), did_you_mean)
        data = data["gpus"]
    entries = data if isinstance(data, list) else [data]
    if not entries:
        raise UsageError(f"{where}: no GPU in it")
    specs = [_gpu(entry, where, f"gpus[{i}]" if len(entries) > 1 else "", origin) for i, entry in enumerate(entries)]
    try:
        build_index((spec.name, spec.aliases) for spec in specs)
    except ValueError as error:
        raise UsageError(f"{where}: field 'aliases': {error}") from error
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{where}: field 'name': {name!r} is given twice")
    return specs


def _gpu(entry: object, where: str, prefix: str, origin: str) -> GpuSpec:
    fields = Fields(entry, where, prefix)
    fields.only((*REQUIRED, *OPTIONAL), did_you_mean)
    flops = fields.section("flops")
    flops.only(FLOPS_DTYPES, did_you_mean)
    if not flops.data:
        raise fields.fail("flops", f"must name at least one of {', '.join(FLOPS_DTYPES)}")
    name = fields.text("name").strip()
    if not key(name):
        raise fields.fail("name", "must not be empty")
    units = fields.text("matrix_units", "")
    if units not in MATRIX_UNITS:
        raise fields.fail("matrix_units", f"must be one of {', '.join(filter(None, MATRIX_UNITS))}, not {units!r}")
    return GpuSpec(
        name=name,
        memory_bytes=fields.positive("memory_bytes", maximum=1e15),
        memory_bandwidth=fields.positive("memory_bandwidth", maximum=1e16),
        flops={dtype: flops.positive(dtype, maximum=1e20) for dtype in flops.data},
        host_link_bandwidth=fields.positive("host_link_bandwidth", maximum=1e15),
        gpu_link_bandwidth=_optional(fields, "gpu_link_bandwidth", 1e15),
        l2_bytes=_optional(fields, "l2_bytes", 1e12),
        power_w=_optional(fields, "power_w", 1e5),
        gpus_per_node=fields.int("gpus_per_node", 8),
        nvlink_domain=fields.int("nvlink_domain") if fields.has("nvlink_domain") else None,
        unified_memory=fields.bool("unified_memory", False),
        price_per_hour=_optional(fields, "price_per_hour", 1e6),
        price_date=_date(fields),
        price_source=fields.text("price_source", ""),
        source=fields.text("source", ""),
        note=fields.text("note", ""),
        aliases=tuple(fields.texts("aliases")),
        origin=origin,
        sibling_of=fields.text("sibling_of", ""),
        matrix_units=units,
    )


def _optional(fields: Fields, name: str, maximum: float) -> float | None:
    return fields.positive(name, maximum=maximum) if fields.has(name) else None


def _date(fields: Fields) -> str:
    """`2025-11` or `2025-11-03`; YAML reads the latter as a date, which is as good."""
    date = str(fields.data.get("price_date") or "")
    if date and not re.fullmatch(r"\d{4}-\d{2}(-\d{2})?", date):
        raise fields.fail("price_date", f"must be YYYY-MM, not {date!r}")
    return date


def _read(file: Path) -> Any:
    from sim.yaml_text import MAX_BYTES, read_yaml  # 20 ms that the packaged cards do without

    try:
        return read_yaml(text_of(file, MAX_BYTES), str(file))
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}") from error


def _split_path(text: str) -> tuple[Path | None, str, str]:
    """(file, ":", name): the whole text when it is a path, else what precedes the last colon."""
    path = given_path(text, (".yaml", ".yml"))
    head, colon, name = text.rpartition(":")
    if colon and (path is None or not path.exists()) and head.endswith((".yaml", ".yml")):
        return Path(os.path.expanduser(head)), colon, name
    return path, "", ""


def _pick(specs: Sequence[GpuSpec], name: str, where: str) -> GpuSpec:
    if not name:
        if len(specs) > 1:
            raise UsageError(f"{where}: holds {len(specs)} GPUs; say which, as in {where}:{specs[0].name}")
        return specs[0]
    found = find_gpu(name, specs)
    if found is None:
        names = [spec.name for spec in specs]
        raise unknown("GPU", name, {key(known): known for known in names}, names, f" (in {where})")
    return found


def _find(name: str, index: dict[str, str]) -> str | None:
    return index.get(key(name)) or index.get(key(_MAKER.sub("", name)))


@cache
def _catalogue() -> dict[str, GpuSpec]:
    specs = parse_gpus(json.loads(_FILE.read_text(encoding="utf-8")), "GPU catalogue", origin="catalogue")
    return {spec.name: spec if spec.price_per_hour else _at_market_price(spec) for spec in specs}


@cache
def _prices() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(PRICES.read_text(encoding="utf-8"))
    return found


def _at_market_price(spec: GpuSpec) -> GpuSpec:
    if (found := market(spec.name)) is None:
        return spec
    usd, date, what = found
    return replace(spec, price_per_hour=usd, price_date=date, price_source=what)


@cache
def _index() -> dict[str, str]:
    return build_index((name, spec.aliases) for name, spec in _catalogue().items())
