"""Answers of a scenario's cells, kept as JSON files that say what they depend on."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import click

MOST_BYTES = 1 << 26  # of a kept answer


def answer_of(cell: Any, target: Path | None, resume: bool) -> dict[str, Any]:
    """The answer of a cell; kept in `target` with all that it depends on, so that a resumed run never takes another's."""
    from sim.files import write_text

    if target is None:
        answer: dict[str, Any] = cell.answer()
        return answer
    asked = cell.asked()
    if resume and target.is_file() and (kept := _kept(target, asked)) is not None:
        return kept
    answer = cell.answer()
    body = json.loads(json.dumps({"asked": asked, "answer": answer}))
    write_text(target, json.dumps({**body, "digest": answer_digest(body)}, indent=1))
    return answer


def _kept(target: Path, asked: dict[str, Any]) -> dict[str, Any] | None:
    """The answer kept of a cell; None where it is another's, or where the file is damaged, which is said."""
    from sim.files import text_of
    from sim.json_text import read_json

    try:
        kept = read_json(text_of(target, MOST_BYTES))
        body = {"asked": kept["asked"], "answer": kept["answer"]}
        sound = isinstance(body["answer"], dict) and kept["digest"] == answer_digest(body)
    except (ValueError, TypeError, KeyError):
        sound = False
    if not sound:
        click.echo(f"{target}: damaged: this cell runs again", err=True)
        return None
    return body["answer"] if body["asked"] == asked else None


def answer_digest(body: dict[str, Any]) -> str:
    """Of what is kept of a cell, so that a damaged file is known."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
