"""Pages of the site: those of docs/, and a front page, CLI and API reference, notebooks and decisions made from the rest of the repository.

    python docs/site_pages.py FOLDER     writes them as Markdown that mkdocs.yml makes a site of

Links that leave docs/ lead to these pages, or to a copy of the file.
"""

from __future__ import annotations

import base64
import html
import importlib
import inspect
import json
import posixpath
import re
import runpy
import shutil
import sys
from dataclasses import asdict
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from simctl.cli import COMMANDS, group  # noqa: E402
from simctl.text.claims_text import interval  # noqa: E402
from studies.replication.reports import REPORTS  # noqa: E402
from studies.replication.reports import claims as claims_of  # noqa: E402

LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")
# Files at the top of the repository that are pages of the site.
TOP = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
PACKAGES = ("sim", "calibrate", "hw", "kernels")


def pages() -> dict[str, str | bytes]:
    """Pages of the site by address: those of docs/ with their files, and those that are made."""
    made: dict[str, str | bytes] = {"reference/cli.md": cli_reference(), "adr/index.md": decisions(), "notebooks/index.md": notebooks()}
    made["claims.md"] = claims()
    made["reference/coverage.md"] = runpy.run_path(str(ROOT / "docs" / "coverage.py"))["page"]()
    made |= {page: moved((ROOT / source).read_text(encoding="utf-8"), ROOT, page) for source, page in TOP.items()}
    made |= {api_page(package): api_reference(package, modules) for package, modules in api_modules().items()}
    for path in notebook_files():
        made |= notebook(path)
    for path in sorted((ROOT / "docs").rglob("*")):
        uri = path.relative_to(ROOT / "docs").as_posix()
        if path.suffix == ".md":
            text = path.read_text(encoding="utf-8")
            made |= {to_page(other): other.read_bytes() for other in outside(text, path.parent)}
            made[uri] = re.sub(r"^( *```console) slow$", r"\1", moved(text, path.parent, uri), flags=re.MULTILINE)
        elif path.is_file() and path.suffix not in (".py", ".pyc"):
            made[uri] = path.read_bytes()
    return made


def write(folder: Path) -> None:
    """The pages as files of a folder that holds nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    for uri, content in pages().items():
        target = folder / uri
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())


# Links


def to_page(path: Path) -> str:
    """The address in the site of a file or folder of the repository."""
    name = path.relative_to(ROOT).as_posix()
    if name in TOP:
        return TOP[name]
    if name in ("docs/adr", "notebooks"):
        return f"{name.removeprefix('docs/')}/index.md"
    if name == "docs/log":
        return "log/README.md"
    if path.suffix == ".ipynb":
        return f"notebooks/{path.stem}.md"
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    return f"files/{name}" if path.suffix == ".md" else f"files/{name}.txt"


def outside(text: str, home: Path) -> list[Path]:
    """Files that are no pages of the site and that a page in the folder `home` links to."""
    found = {(home / target).resolve() for target in LINK.findall(text)}
    return sorted(path for path in found if path.is_relative_to(ROOT) and path.is_file() and to_page(path).startswith("files/"))


def moved(text: str, home: Path, uri: str) -> str:
    """A page of the folder `home` with its links as they are from `uri` in the site. What leads nowhere stays, for the build to refuse."""

    def link(found: re.Match[str]) -> str:
        target = (home / found[1]).resolve()
        if not target.is_relative_to(ROOT) or not target.exists():
            return found[0]
        return posixpath.relpath(to_page(target), posixpath.dirname(uri) or ".")

    return LINK.sub(link, text)


# The CLI reference


def cli_reference() -> str:
    """Every command with its help, its arguments and its options."""
    parts = [f"# Command line\n\n{help_text(group)}\n"]
    for name, (module, _) in COMMANDS.items():
        command: click.Command = importlib.import_module(module).command
        context = click.Context(command, info_name=f"simctl {name}")
        parts.append(f"## simctl {name}\n\n```text\n{' '.join(command.get_usage(context).split())}\n```\n\n{help_text(command)}\n")
        options = {option.name: option for option in command.params if isinstance(option, click.Option) and not option.hidden}
        sections = getattr(command, "sections", {})
        named = {long.removeprefix("--"): key for key, option in options.items() for long in option.opts}
        titled = {title: [options.pop(named[long]) for long in longs] for title, longs in sections.items()}
        for title, group_of in {**titled, "Options": list(options.values())}.items():
            parts.append(f"### {title} {{: #{name}-{re.sub('[^a-z]+', '-', title.lower())} }}\n" if titled else "")
            parts += [option_text(option, context) for option in group_of]
    return "\n".join(parts)


def help_text(command: click.Command) -> str:
    """The help of a command as Markdown; a paragraph that click must not wrap is a code block."""
    parts = []
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        verbatim = "\b\n" in paragraph
        body = paragraph.replace("\b\n", "").strip("\n")
        parts.append(f"```text\n{body}\n```" if verbatim else escaped(" ".join(body.split())))
    return "\n\n".join(parts)


def option_text(option: click.Option, context: click.Context) -> str:
    """An option as an entry of a definition list."""
    record = option.get_help_record(context)
    assert record is not None
    return f"`{record[0]}`\n:   {escaped(' '.join(record[1].split()))}\n"


def escaped(text: str) -> str:
    """Prose of a help as Markdown: code stays code, everything else is read literally."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([\\*_\[\]])", r"\\\1", html.escape(part, quote=False)) for part in parts[::2]]
    return "`".join(parts)


# Claims


def claims() -> str:
    """Output of `simctl replicate all`, as tables."""
    parts = ["# Published claims\n\nWhat five reports say, and what comes out when it is computed again: `simctl replicate all`.\n"]
    for report in REPORTS:
        parts.append(f"## {report}\n\n| claim | verdict | published | we get | 90 % interval |\n| --- | --- | --- | --- | --- |")
        for claim in claims_of(report):
            texts = (
                claim.name,
                claim.verdict,
                claim.published,
                f"{claim.how}: {claim.ours}",
                interval(asdict(claim)).removeprefix("90 % interval: "),
            )
            parts.append(f"| {' | '.join(escaped(text).replace('|', '&#124;') for text in texts)} |")
        parts.append("")
    return "\n".join(parts)


# The API reference


def api_modules() -> dict[str, list[str]]:
    """Modules by package: those of its folder, less what is private or a program."""
    found: dict[str, list[str]] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if not any(part.startswith("_") and part != "__init__" for part in parts):
                module = ".".join(part for part in parts if part != "__init__")
                found.setdefault(".".join(parts[:-1]), []).append(module)
    return found


def api_page(package: str) -> str:
    return f"reference/api/{package}.md"


def api_reference(package: str, modules: list[str]) -> str:
    """A page of one package: its own names first, then its modules."""
    return f"---\ntitle: {package}\n---\n\n# Package {package}\n\n" + "\n\n".join(f"::: {module}" for module in modules) + "\n"


# Notebooks and decisions


def notebook_files() -> list[Path]:
    return sorted((ROOT / "notebooks").glob("*.ipynb"))


def notebook(path: Path) -> dict[str, str | bytes]:
    """A notebook as a page and its pictures."""
    parts: list[str] = []
    pictures: dict[str, str | bytes] = {}
    for place, cell in enumerate(json.loads(path.read_text(encoding="utf-8"))["cells"]):
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{path.stem}_{place}.png"
                pictures[f"notebooks/{name}"] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![output of the cell above]({name})")
            else:
                parts.append(f"```text\n{''.join(output.get('text', data.get('text/plain', '')))}\n```")
    return {f"notebooks/{path.stem}.md": "\n\n".join(parts) + "\n", **pictures}


def notebooks() -> str:
    """The list of notebooks by their questions."""
    cells = {path.stem: json.loads(path.read_text(encoding="utf-8"))["cells"] for path in notebook_files()}
    lines = [f"* [{''.join(first['source']).splitlines()[0].removeprefix('# ')}]({stem}.md)" for stem, (first, *_) in cells.items()]
    return "# Notebooks\n\nEach asks a question, and ends with a number. The files are in `notebooks/`.\n\n" + "\n".join(lines) + "\n"


def decisions() -> str:
    """The list of decisions by their titles."""
    paths = sorted((ROOT / "docs" / "adr").glob("*.md"))
    lines = [f"* [{path.read_text(encoding='utf-8').splitlines()[0].removeprefix('# ')}]({path.name})" for path in paths]
    return "# Decisions\n\nWhat was decided, and why, on a page each.\n\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    write(Path(sys.argv[1]))
