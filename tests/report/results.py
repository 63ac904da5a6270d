"""Saved results that the tests of reports share, small and quick to make."""

from __future__ import annotations

import json
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from tests.cli import run

ROOT = Path(__file__).parents[2]
RUN = ("simulate", "--gpu", "H100", "--model", "Llama-3.1-8B", "--num-prompts", "60", "--request-rate", "12", "--random-output-len", "20")


@cache
def results() -> dict[str, Path]:
    """A file or folder of every kind that a report takes, by kind."""
    folder = Path(mkdtemp(prefix="report-"))
    assert run(*RUN, "--draws", "6", "--out", str(folder / "run")).code == 0
    assert run(*RUN, "--draws", "0", "--replicas", "3", "--out", str(folder / "fleet")).code == 0
    assert run(*RUN, "--no-iterations", "--out", str(folder / "figures_only")).code == 0
    few = (*RUN[3:5], "--num-prompts", "20", *RUN[7:])
    plan = ("plan", *few, "--gpu", "L4,L40S", "--slo", "ttft:p99<2s tpot:p95<60ms", "--workers", "1", "--within", "10m", "--json")
    claims = run("replicate", "gdn", "--json").stdout
    written = {
        "plan": run(*plan).stdout,
        "map": run("what-if", "--ctx", "1M", "--map", "hbm", "--gpu", "H100", "--json").stdout,
        "claims": claims,
    }
    for name, text in written.items():
        (folder / f"{name}.json").write_text(text)
    vary = ("--vary", "request-rate=0.5,1", "--set", "num-prompts=20", "--set", "draws=2", "--set", "random-output-len=20")
    sweep = run("sweep", "batch_cap_on_an_a10", "-o", str(folder / "sweep.zarr"), "--workers", "1", *vary)
    assert sweep.code == 0, sweep.stderr
    found = {name: folder / name for name in ("run", "fleet", "figures_only")} | {name: folder / f"{name}.json" for name in written}
    packaged = {"scores": ROOT / "docs/data/validate.csv", "posterior": ROOT / "scenarios/data/posteriors/h100.nc"}
    return found | packaged | {"sweep": folder / "sweep.zarr"}


class Page(HTMLParser):
    """What a browser's parser finds: elements with their attributes, and the texts inside scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data

    def pictures(self) -> list[Any]:
        """Specifications of the pictures."""
        kinds = [dict(attrs).get("type") for tag, attrs in self.tags if tag == "script"]
        return [json.loads(text) for kind, text in zip(kinds, self.scripts, strict=True) if kind == "application/json"]


def page_of(target: Path, *inputs: Path) -> tuple[str, Page]:
    """The report of these inputs: its text, and what is in it."""
    result = run("report", *map(str, inputs), "-o", str(target))
    assert result.code == 0, result.stderr
    text = target.read_text(encoding="utf-8")
    return text, Page(text)
