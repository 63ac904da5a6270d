"""`simctl cache`: the machine code that is kept of the simulator's loop, shown or cleared."""

from __future__ import annotations

import json

import click


@click.command("cache")
@click.option("--clear", is_flag=True, help="Remove all of it; the next long run, or python -m sim.cluster.compile_fleet, makes it again.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def command(clear: bool, as_json: bool) -> None:
    """Show or clear the cache of machine code.

    It is kept in $XDG_CACHE_HOME/simctl/machine-code, or in ~/.cache. Only files of your own that nobody else can write are used,
    and only if they equal their digest. Folders that were used longest ago go when it is full.
    """
    from sim import machine_code_cache
    from sim.cluster.compiled import cache_directory
    from simctl.text.cache_text import cache_lines

    if clear:
        machine_code_cache.clear()
    root, entries, current = machine_code_cache.root(), machine_code_cache.entries(), cache_directory()
    if as_json:
        folders = [{**entry._asdict(), "folder": str(entry.folder), "current": entry.folder == current} for entry in entries]
        click.echo(json.dumps({"root": root and str(root), "most_bytes": machine_code_cache.MOST_BYTES, "folders": folders}, indent=2))
    else:
        click.echo("\n".join(cache_lines(root, entries, current)))
