"""Install hints for parts that need further packages."""

from __future__ import annotations

import shlex
from pathlib import Path

DISTRIBUTION = "llm-simctl"
ROOT = Path(__file__).parent.parent  # of a checkout, else where packages are installed


def install_hint(extra: str) -> str:
    """The pip command that installs an extra: of the checkout that runs, else of the packages that an installed wheel asks for."""
    if (ROOT / "pyproject.toml").is_file():
        return f"pip install -e {shlex.quote(f'{ROOT}[{extra}]')}"
    import importlib.metadata  # it takes as long to load as a twentieth of a short question

    try:
        requirements = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        requirements = []
    named = [part.partition(";")[0].strip() for part in requirements if f'extra == "{extra}"' in part.replace("'", '"')]
    return f"pip install {shlex.join(named)}" if named else f"pip install '{DISTRIBUTION}[{extra}]'"
