"""Pages of the documentation, their prose, and the commands that they show."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def script(name: str) -> Any:
    """A program of the documentation as a module: `docs` is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


refresh = script("refresh")

FENCE = re.compile(r"^ *```(?P<info>[^\n]*)\n(?P<body>.*?)^ *```", re.DOTALL | re.MULTILINE)
TABLE_OR_IMAGE = re.compile(r"^ *(?:\||!\[|<!--|# ).*$", re.MULTILINE)
PAGES = refresh.pages()
# The log keeps findings as they were on their day; everything else is the documentation of today.
CURRENT = [path for path in PAGES if path.parent.name != "log"]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def prose_of(path: Path) -> str:
    """A page without code blocks, tables, images and headings."""
    return TABLE_OR_IMAGE.sub("", FENCE.sub("", text_of(path)))


def shown_commands(path: Path) -> list[str]:
    """Command lines of the page: in blocks of every kind and inline code, comments and `$` cut."""
    text = text_of(path)
    lines = [line.strip() for found in FENCE.finditer(text) if "json" not in found["info"] for line in found["body"].splitlines()]
    inline = re.findall(r"`(simctl [^`\n]+)`", FENCE.sub("", text))
    commands = [re.sub(r"^\$ |\s+# .*$", "", line) for line in lines] + inline
    return [command for command in commands if command.startswith("simctl ")]
