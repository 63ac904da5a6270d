"""`simctl gpus`: the GPU catalogue, one GPU's datasheet, or a datasheet file of your own, checked."""

from __future__ import annotations

import json
from pathlib import Path

import click

from simctl.options.option_types import GPU


@click.command("gpus")
@click.argument("name", type=GPU, required=False)
@click.option("--file", "file", type=click.Path(path_type=Path), help="YAML file with GPUs of your own; they come first, marked *.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option("--yaml", "as_yaml", is_flag=True, help="Print YAML that --file and --gpu read back: a start for a card of your own.")
def command(name: str | None, file: Path | None, as_json: bool, as_yaml: bool) -> None:
    """List the GPU catalogue, or show one GPU.

    NAME is a catalogue name or alias as people or nvidia-smi write it (h100, H100_SXM, "NVIDIA H100 80GB HBM3"), or a YAML file.

    Figures are datasheet peaks, without sparsity; nobody reaches them. Memory is what the driver reports where that is known.
    A card from a file has no measurements, so answers for it rest on the datasheet alone, with wide intervals.
    """
    from sim.specs.gpus import find_gpu, get_gpu, list_gpus, load_gpus
    from simctl.text import gpu_text

    if as_json and as_yaml:
        raise click.UsageError("--json and --yaml exclude each other")
    own = load_gpus(file) if file is not None else []
    if name is not None:
        specs = [find_gpu(name, own) or get_gpu(name)]
    else:
        specs = own + [get_gpu(known) for known in list_gpus()]
    if as_json:
        plain = [gpu_text.describe(spec) for spec in specs]
        click.echo(json.dumps(plain[0] if name is not None else plain, indent=2))
    elif as_yaml:
        click.echo(gpu_text.as_yaml(specs if name is not None or file is None else own), nl=False)
    elif name is not None:
        click.echo("\n".join(gpu_text.gpu_lines(specs[0])))
    else:
        click.echo("\n".join(gpu_text.catalogue(specs)))
