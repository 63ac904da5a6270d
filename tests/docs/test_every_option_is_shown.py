"""Every option of every command, and every setting of an option group, appears in a page, a scenario or a notebook."""

import re
from collections.abc import Iterator

import click
import pytest

from simctl.cli import COMMANDS, group
from simctl.options.option_groups import SettingGroup
from tests.docs.pages import CURRENT, ROOT, text_of

FILES = [*(ROOT / "scenarios").glob("*.yaml"), *(ROOT / "scenarios" / "fleets").glob("*"), *(ROOT / "notebooks").glob("*.ipynb")]
SHOWN = "\n".join([*map(text_of, CURRENT), *(path.read_text(encoding="utf-8") for path in FILES)])


def names() -> Iterator[tuple[str, tuple[str, ...]]]:
    """(command and option, names of the option without dashes)."""
    context = click.Context(group)
    for name in COMMANDS:
        command = group.get_command(context, name)
        assert command is not None
        for option in command.params:
            if isinstance(option, click.Option):
                members = option.members if isinstance(option, SettingGroup) else ()
                for each in (option, *members):
                    yield (
                        f"{name} {each.opts[0]}",
                        tuple(text.lstrip("-") for text in (*each.opts, *each.secondary_opts) if not re.fullmatch("-.", text)),
                    )


def is_shown(option: str) -> bool:
    """As `--option`, `option=...`, `option: ...` or in quotes."""
    name = option.replace("-", "[-_]")
    return re.search(rf"--{name}(?![\w-])|(?<![\w-]){name}(?:[=:`\"']|\\\")", SHOWN) is not None


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_shown(command: str) -> None:
    hidden = [what for what, options in names() if what.split()[0] == command and not any(map(is_shown, options))]
    assert hidden == []
