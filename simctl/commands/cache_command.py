"""`simctl cache`: the machine code that is kept of the simulator's loop, shown or cleared."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import click

from sim.machine_code_cache import MOST_BYTES, Entry


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

    if clear:
        machine_code_cache.clear()
    root, entries, current = machine_code_cache.root(), machine_code_cache.entries(), cache_directory()
    if as_json:
        folders = [{**entry._asdict(), "folder": str(entry.folder), "current": entry.folder == current} for entry in entries]
        click.echo(json.dumps({"root": root and str(root), "most_bytes": machine_code_cache.MOST_BYTES, "folders": folders}, indent=2))
    else:
        click.echo("\n".join(cache_lines(root, entries, current)))


def cache_lines(root: Path | None, entries: Sequence[Entry], current: Path | None) -> list[str]:
    """The table of a cache at `root`; `current` is the folder of this very version on this processor."""
    if root is None:
        return ["no folder for machine code: neither XDG_CACHE_HOME nor a home"]
    total = sum(entry.size_bytes for entry in entries)
    lines = [f"{root}: {total / 1e6:.1f} MB of at most {MOST_BYTES / 1e6:.0f}"]
    if entries:
        lines.append(f"{'folder':<18}{'MB':>6}  {'last used':<18}state")
    for entry in entries:
        used = datetime.fromtimestamp(entry.used_s).strftime("%Y-%m-%d %H:%M")
        state = f"not used: {entry.fault}" if entry.fault else "of this version" if entry.folder == current else "of another version"
        lines.append(f"{entry.folder.name:<18}{entry.size_bytes / 1e6:>6.1f}  {used:<18}{state}")
    if not any(entry.folder == current and not entry.fault for entry in entries):
        lines.append("none of this version: python -m sim.cluster.compile_fleet makes it")
    return lines
