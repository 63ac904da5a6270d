"""The table beside the measured data is what the files say of themselves, and the words above it name each of them."""

import re
import shutil
from pathlib import Path

import click.testing

from sim.errors import UsageError
from tests.docs.pages import script

FOLDER = Path(__file__).parents[2] / "scenarios" / "data" / "measured"
README = (FOLDER / "README.md").read_text()
inventory = script("inventory")


def test_the_committed_table_is_what_the_files_say() -> None:
    assert inventory.put(FOLDER / "README.md", inventory.table(FOLDER)) == README


def test_the_notes_name_every_file() -> None:
    notes = README[: README.index("<!-- begin inventory")]
    named = {m for row in re.findall(r"^\| (\S+) \|", notes, re.MULTILINE) for m in _expanded(row)}
    assert {str(path.relative_to(FOLDER).with_suffix("")) for path in FOLDER.rglob("*.nc")} <= named


def _expanded(name: str) -> list[str]:
    if found := re.fullmatch(r"(.*)\{(.*)\}(.*)", name):
        return [f"{found[1]}{middle}{found[3]}" for middle in found[2].split(",")]
    return [name]


def test_a_new_file_changes_the_table_and_write_puts_it_there(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "h100" / "floor.nc", tmp_path / "new.nc")
    (tmp_path / "README.md").write_text("before\n<!-- begin inventory -->\nold\n<!-- end inventory -->\nafter\n")
    result = click.testing.CliRunner().invoke(inventory.main, [str(tmp_path), "--write"])
    assert result.exit_code == 0, result.output
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("before\n<!-- begin inventory -->\n| file |")
    assert "| new | NVIDIA H100 80GB HBM3 |" in text
    assert text.endswith("<!-- end inventory -->\nafter\n")
    (tmp_path / "README.md").write_text("no marks")
    assert isinstance(click.testing.CliRunner().invoke(inventory.main, [str(tmp_path), "--write"]).exception, UsageError)
