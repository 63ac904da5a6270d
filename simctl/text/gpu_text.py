"""A GPU's datasheet as `simctl gpus` prints it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from simctl.text.layout import aligned, wrapped

if TYPE_CHECKING:
    from sim.specs.gpu import GpuSpec

_COLUMNS = ("GPU", "GB", "GB/s", "16-bit", "fp8", "fp4", "host", "link", "USD/h")
_UNITS = "GB and GB/s decimal; dense TFLOP/s; host and GPU-GPU link in GB/s per direction."


def catalogue(specs: list[GpuSpec]) -> list[str]:
    """A line a GPU, and the units."""
    return [*aligned(_COLUMNS, [_row(spec) for spec in specs]), "", _UNITS]


def describe(spec: GpuSpec) -> dict[str, Any]:
    """The datasheet as plain data, keys as in the YAML files."""
    from dataclasses import fields

    data = {field.name: getattr(spec, field.name) for field in fields(spec)}
    return data | {"flops": dict(spec.flops), "aliases": list(spec.aliases)}


def _row(spec: GpuSpec) -> tuple[str, ...]:
    mark = "" if spec.origin == "catalogue" else "*"
    flops = {"16-bit": spec.flops.get("bf16", spec.flops.get("fp16")), "fp8": spec.flops.get("fp8"), "fp4": spec.flops.get("fp4")}
    tera = [f"{value / 1e12:.0f}" if value else "-" for value in flops.values()]
    link = f"{spec.gpu_link_bandwidth / 1e9:.4g}" if spec.gpu_link_bandwidth else "-"
    price = f"{spec.price_per_hour:.2f}" if spec.price_per_hour else "-"
    memory, bandwidth = f"{spec.memory_bytes / 1e9:.1f}", f"{spec.memory_bandwidth / 1e9:.0f}"
    return (spec.name + mark, memory, bandwidth, *tera, f"{spec.host_link_bandwidth / 1e9:.4g}", link, price)


def gpu_lines(spec: GpuSpec) -> list[str]:
    """One GPU, a line a figure."""
    rows = [
        ("memory", f"{spec.memory_bytes / 1e9:.1f} GB ({spec.memory_bytes / 2**20:.0f} MiB)"),
        ("memory bandwidth", f"{spec.memory_bandwidth / 1e9:.0f} GB/s"),
        *((f"dense {dtype}", f"{flops / 1e12:.4g} TFLOP/s") for dtype, flops in spec.flops.items()),
        ("host link", "the same memory" if spec.unified_memory else f"{spec.host_link_bandwidth / 1e9:.4g} GB/s per direction"),
        ("GPU-GPU link", f"{spec.gpu_link_bandwidth / 1e9:.4g} GB/s per direction" if spec.gpu_link_bandwidth else "none"),
        ("power limit", f"{spec.power_w:.0f} W" if spec.power_w else "not stated"),
        ("L2 cache", f"{spec.l2_bytes / 2**20:.4g} MiB" if spec.l2_bytes else "not stated"),
    ]
    lines = [spec.name, *(f"  {what:<18}{value}" for what, value in rows)]
    origin = "" if spec.origin == "catalogue" else f"{spec.origin}: datasheet prior, wide interval"
    for what, text in (
        ("price", _price(spec)),
        ("source", spec.source),
        ("note", spec.note),
        ("from", origin),
        ("also", ", ".join(spec.aliases)),
    ):
        if text:
            lines += wrapped(text, f"  {what:<18}", " " * 20)
    return lines


def _price(spec: GpuSpec) -> str:
    if spec.price_per_hour is None:
        return "none recorded"
    return f"{spec.price_per_hour:.2f} USD/h" + (f" ({spec.price_date}; {spec.price_source})" if spec.price_date else "")


def as_yaml(specs: list[GpuSpec]) -> str:
    """A file that --file and --gpu read back."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Block style, large round numbers with an exponent."""

    Dumper.add_representer(float, lambda dumper, value: dumper.represent_scalar("tag:yaml.org,2002:float", _number(value)))
    entries = []
    for spec in specs:
        entry = describe(spec)
        del entry["origin"]
        entries.append({key: value for key, value in entry.items() if value not in (None, "", [])})
    return yaml.dump({"gpus": entries}, Dumper=Dumper, sort_keys=False, width=120, allow_unicode=True)


def _number(value: float) -> str:
    """Short and exact: `31.2e+12`, `24146608128.0`."""
    for exponent in (12, 9):
        short = f"{value / 10**exponent:.6g}"
        if value >= 10**exponent and "e" not in short and float(f"{short}e{exponent}") == value:
            return f"{short if '.' in short else short + '.0'}e+{exponent}"
    return repr(value)
