"""Text of the machine-code cache: its folders, with size, age and what keeps one from being used."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from sim.machine_code_cache import MOST_BYTES, Entry


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
