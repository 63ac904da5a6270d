"""Servers that units of systemd (Podman's quadlets, too), programs of supervisord and Dockerfiles start, as commands."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from simctl.options.shell_text import Command, commands, environment_of, expanded, expanded_in_shell, split


def unit_commands(name: str, text: str, folder: Path) -> list[Command]:
    """Servers of a systemd unit or of supervisord's programs: what ExecStart, a quadlet's Image and Exec, or command starts, with their
    variables, `numprocs` times.
    """
    found: list[Command] = []
    for section in re.split(r"^(?=\s*\[program:)", text, flags=re.MULTILINE):
        variables, lines, copies, image = environment_of(folder), [], 1, ""
        for number, line in _lines_of_unit(section):
            key, _, value = (part.strip() for part in line.partition("="))
            if key in ("Environment", "environment"):
                words = split(name, number, value if key == "Environment" else re.sub(r",\s*(?=\w+=)", " ", value))
                variables |= {word.partition("=")[0]: word.partition("=")[2] for word in words if "=" in word}
            elif key == "EnvironmentFile":
                variables |= environment_of(folder, value.lstrip("-"))
            elif key in ("ExecStart", "command"):
                lines.append(value.lstrip("-@:+!"))
            elif key == "Image":
                image = value
            elif key == "Exec":
                lines.append(f"podman run {image} {value}")
            elif key == "numprocs" and value.isdecimal():
                copies = int(value)
        for each in (each for line in lines for each in commands(name, line, variables)):
            each.copies *= copies
            found.append(each)
    return found


def _lines_of_unit(text: str) -> Iterator[tuple[int, str]]:
    kept, began = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        began = began or number
        if line.lstrip().startswith(("#", ";")):
            continue
        kept += line.rstrip()
        if kept.endswith("\\"):
            kept = kept[:-1] + " "
            continue
        yield began, kept
        kept, began = "", 0


def dockerfile_commands(name: str, text: str, folder: Path) -> list[Command]:
    """The server that the last stage of a Dockerfile starts: its ENTRYPOINT, or its image's, with the words of CMD."""
    variables, image = environment_of(folder), ""
    entry: list[str] = []
    words: list[str] = []
    for number, line in _lines_of_unit(text):
        key, _, value = line.strip().partition(" ")
        value = expanded(value.strip(), variables) if key.upper() in ("FROM", "ENV", "ARG") else value.strip()
        if key.upper() == "FROM":
            image, entry, words = next((word for word in value.split() if not word.startswith("--")), ""), [], []
        elif key.upper() in ("ENV", "ARG"):
            pairs = split(name, number, value if "=" in value else "=".join(value.split(None, 1)))
            variables |= {pair.partition("=")[0]: pair.partition("=")[2] for pair in pairs if "=" in pair}
        elif key.upper() == "ENTRYPOINT":
            entry, words = _listed(name, number, value, variables), []
        elif key.upper() == "CMD":
            words = _listed(name, number, value, variables)
    found = commands(name, shlex.join([*(entry or ["docker", "run", image]), *words]), variables)
    for each in found:
        each.image = each.image or image
    return found


def _listed(name: str, number: int, value: str, variables: Mapping[str, str]) -> list[str]:
    """Words of the two forms: a JSON list, taken as it is, or a line for the shell."""
    try:
        given = json.loads(value)
    except ValueError:
        given = None
    return [str(each) for each in given] if isinstance(given, list) else split(name, number, expanded_in_shell(value, variables))
