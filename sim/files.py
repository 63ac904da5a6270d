"""Atomic writing: files and result directories that appear whole or not at all; and what JSON can say."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sim.errors import UsageError


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary file beside `path` to write to; on success it replaces `path`, on any failure nothing is left of it."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text, whole or not at all. Raises OSError."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def writable(path: str | Path | None) -> Path | None:
    """The path, checked before any work is done: its folder must exist and take files. UsageError otherwise."""
    if path is None:
        return None
    target = Path(path)
    if not target.parent.is_dir():
        raise UsageError(f"cannot write {path}: {target.parent} is not a folder")
    if target.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder")
    probe = target.with_name(f".{target.name}.probe")
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    return target


@contextmanager
def replaced_directory(target: Path, owned: Sequence[str]) -> Iterator[Path]:
    """Yield a fresh directory beside `target`; on success it takes target's place, on any failure nothing is left.

    Made (and so proved writable) before the work starts. A kill at any moment leaves the old directory or, between two renames,
    none; never a mixture. Only names in `owned` may be in an old directory: foreign files are never moved or deleted.
    Raises UsageError when `target` cannot be such a directory.
    """
    target = Path(os.path.abspath(target))
    if target.is_dir():
        foreign = sorted(set(os.listdir(target)).difference(owned))
        if foreign:
            raise UsageError(f"{target}: holds {foreign[0]!r}, which is not part of a result; choose another directory")
    elif target.exists() or target.is_symlink():
        raise UsageError(f"{target}: not a directory")
    made = _make_parents(target.parent)
    try:
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    except OSError as error:
        _remove_empty(made)
        raise UsageError(f"cannot write into {target.parent}: {error.strerror}") from None
    try:
        yield staging
        staging.chmod(0o755)
        _swap(staging, target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        _remove_empty(made)
        raise


def _swap(staging: Path, target: Path) -> None:
    if not target.is_dir():
        staging.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".old.tmp", dir=target.parent))
    target.rename(old)  # onto an empty directory: allowed, and atomic
    staging.rename(target)
    shutil.rmtree(old)


def _make_parents(path: Path) -> list[Path]:
    """Create missing directories; returns those created, deepest first."""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    try:
        for each in reversed(missing):
            each.mkdir()
    except OSError as error:
        _remove_empty(missing)
        raise UsageError(f"cannot create {missing[0]}: {error.strerror}") from None
    if not path.is_dir():
        raise UsageError(f"{path}: not a directory")
    return missing


def _remove_empty(paths: Sequence[Path]) -> None:
    for path in paths:
        try:
            path.rmdir()
        except OSError:
            return


def plain(value: Any) -> Any:
    """The value with null for numbers that are not finite: JSON has none."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
