"""`simctl models`: the model catalogue, or one model's shape and what it costs to hold."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from simctl.options.option_types import MODEL
from simctl.text.layout import wrapped

if TYPE_CHECKING:
    from sim.specs.coverage import ModelPart


@click.command("models")
@click.argument("name", type=MODEL, required=False)
@click.option(
    "--check", is_flag=True, help="Print which parts of NAME were measured, which are only computed, and which fields have no effect."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def command(name: str | None, check: bool, as_json: bool) -> None:
    """List the model catalogue, or show one model.

    NAME is a catalogue name or alias (case and dashes do not matter), a config.json or the folder that holds one,
    ORG/NAME in the local Hugging Face cache, or the name of a checkpoint of a known shape: Qwen/Qwen3-32B-AWQ,
    unsloth/Qwen3-8B-GGUF:Q4_K_M, qwen3:32b. What its suffix says of the weights is printed. Nothing is downloaded.

    Parameters are computed from the shape. Active parameters are what one token uses: the chosen experts and all else, without
    the input embedding. KV per token is for layers whose cache grows with the whole context, at two bytes per element.
    """
    from sim.specs.models import get_model, list_models, list_shapes
    from simctl.text.model_text import catalogue, describe, model_lines

    if check:
        if name is None:
            raise click.UsageError("--check wants the NAME of a model or a file")
        rows, idle = _checked(name)
        if as_json:
            click.echo(json.dumps({"parts": [row._asdict() for row in rows], "fields_without_effect": idle}, indent=2))
        else:
            lines = [line for row in rows for line in wrapped(f"{row.status}: {row.name} ({row.remark})", "", "  ")]
            click.echo("\n".join([*lines, *(wrapped(f"without effect: {', '.join(idle)}", "", "  ") if idle else [])]))
        return
    if name is not None:
        spec = get_model(name)
        click.echo(json.dumps(describe(spec), indent=2) if as_json else "\n".join(model_lines(spec)))
        return
    specs = [get_model(known) for known in list_models()]
    if as_json:
        click.echo(json.dumps([describe(spec) for spec in specs], indent=2))
    else:
        click.echo("\n".join(catalogue(specs)))
        more = [known for known in list_shapes() if known not in list_models()]
        click.echo("\n".join(["", *wrapped(f"{len(more)} more shapes by name: {', '.join(more)}", "", "  ")]))


def _checked(name: str) -> tuple[list[ModelPart], list[str]]:
    """Parts of a model, and the fields of its file that change nothing; of a catalogue model there are none."""
    from sim.specs.coverage import parts, without_effect
    from sim.specs.hf_config import read_config
    from sim.specs.lookup import given_path
    from sim.specs.models import get_model

    spec, path = get_model(name), given_path(name, (".json",))
    if path is None or spec.source not in (str(path), str(path / "config.json")):
        return parts(spec), []
    return parts(spec), without_effect(read_config(path / "config.json" if path.is_dir() else path))
