"""Every console block in the documentation shows exactly what its command prints today."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("refresh", ROOT / "docs" / "refresh.py")
refresh = importlib.util.module_from_spec(spec)
spec.loader.exec_module(refresh)


def blocks():
    for path in refresh.documents():
        for match in refresh.BLOCK.finditer(path.read_text(encoding="utf-8")):
            yield pytest.param(match["arguments"], match["module"], match["output"], id=f"{path.name}: {match['arguments']}")


@pytest.mark.parametrize(("arguments", "module", "shown"), list(blocks()))
def test_block_is_current(arguments, module, shown):
    assert refresh.printed(arguments, module) == shown


def test_every_link_and_image_points_at_a_file():
    import re

    for path in refresh.documents():
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name} points at {target}"
