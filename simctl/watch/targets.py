"""Servers by a file of targets as Prometheus discovers them: a list of {targets: [HOST:PORT, ...], labels: {...}}, JSON or YAML."""

from __future__ import annotations

from pathlib import Path

from hw.serve.http_stream import shown, split_url
from sim.errors import UsageError
from sim.files import text_of
from sim.yaml_text import MAX_BYTES, read_yaml

MOST = 1000


def urls_of(path: Path) -> list[str]:
    """URLs of all targets in their order, each once. UsageError for a file that is no such list."""
    try:
        groups = read_yaml(text_of(path, MAX_BYTES, path.name), path.name)
    except OSError as error:
        raise UsageError(f"--targets {path}: {error.strerror}") from None
    if not isinstance(groups, list) or not all(isinstance(each, dict) and isinstance(each.get("targets"), list) for each in groups):
        raise UsageError(f"{path.name}: must be a list of {{targets: [HOST:PORT, ...]}}")
    found: dict[str, None] = {}
    for group in groups:
        labels = group.get("labels") or {}
        scheme = labels.get("__scheme__", "http") if isinstance(labels, dict) else "http"
        for target in group["targets"]:
            url = f"{scheme}://{target}".rstrip("/")
            try:
                split_url(url)
            except ValueError as error:
                raise UsageError(f"{path.name}: {shown(url)}: {error}") from None
            found[url] = None
    if not 1 <= len(found) <= MOST:
        raise UsageError(f"{path.name}: {len(found)} targets; 1 to {MOST} can be watched")
    return list(found)
