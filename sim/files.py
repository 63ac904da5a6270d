"""Atomic writing: files and result directories that appear whole or not at all; and what JSON can say."""

from __future__ import annotations

import math
import os
import platform
import re
import shutil
import stat
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from sim.errors import UsageError
from sim.signals import undisturbed

GZIP = b"\x1f\x8b"
LONGEST_NAME = 200  # bytes of a name that a temporary one keeps
_LEFT = re.compile(r"\.(.+)\.([0-9a-f]{8})-(\d{1,9})\.[0-9a-f]{8}\.(tmp|old)", re.DOTALL)


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary file beside `path` to write to; on success it is on the disk and replaces `path`, on any failure nothing is left of it.

    A link is followed: what it points to is replaced. Raises UsageError for what is there and no regular file, OSError that names `path`
    where the disk takes no more.
    """
    target = _file_target(path)
    _sweep(target.parent)
    temporary = _fresh(target)
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        with _named(path, temporary):
            yield temporary
            _settle(temporary)
            os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _named(path: str | Path, temporary: Path) -> Iterator[None]:
    """Errors of the system name what was to be written, and not the hidden file, or no file at all."""
    try:
        yield
    except OSError as error:
        if error.errno is None or (error.filename is not None and not str(error.filename).startswith(str(temporary))):
            raise
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from error


def _settle(path: Path) -> None:
    """Have a file's content on the disk, so that no crash leaves an empty one under its name."""
    descriptor = os.open(path, os.O_RDWR)  # a few systems write back only what is open for writing
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def scratch_folder(beside: Path) -> Iterator[Path]:
    """A hidden folder beside a path to work in: gone afterwards, and swept by the next run where this one is killed. Raises OSError."""
    _sweep(beside.parent)
    folder = _fresh(beside)
    try:  # whatever ends it meanwhile
        folder.mkdir(mode=0o700)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text, whole or not at all. Raises OSError."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def package_path(package: str, *parts: str) -> Path:
    """A file or folder that is installed with a package of ours; importlib.resources takes 4 ms to import."""
    return Path(import_module(package).__path__[0], *parts)


def writable(path: str | Path | None) -> Path | None:
    """The path, checked before any work is done: what `replacing` will take, in a folder that takes files. UsageError otherwise."""
    if path is None:
        return None
    target = _file_target(path)
    if not target.parent.is_dir():
        raise UsageError(f"cannot write {path}: {target.parent} is not a folder")
    try:
        probe = _fresh(target)
        try:
            probe.touch()
        finally:
            probe.unlink(missing_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from error
    return Path(path)


def made_folder(path: Path) -> None:
    """Make a folder for results, unless it is there. UsageError where something else is, or none can be made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write into {path}: {'it is no folder' if path.exists() else error.strerror}") from None


def text_of(path: Path, most_bytes: int, name: str | None = None) -> str:
    """A UTF-8 text, gzipped or not, of which no more than `most_bytes` are read. Raises UsageError calling the file `name` when it is none
    or larger, OSError when it cannot be read.
    """
    pieces, left = [], most_bytes + 1
    with path.open("rb") as file:
        while left and (piece := file.read(min(left, 1 << 20))):
            pieces.append(piece)
            left -= len(piece)
    if not left:
        raise UsageError(f"{name or path}: larger than {most_bytes >> 10} KiB")
    content = b"".join(pieces)
    if content[:2] == GZIP:
        content = _unpacked(content, most_bytes + 1, str(name or path))
        if len(content) > most_bytes:
            raise UsageError(f"{name or path}: larger than {most_bytes >> 10} KiB")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise UsageError(f"{name or path}: not UTF-8 text") from None


def _unpacked(content: bytes, most: int, name: str) -> bytes:
    """The first `most` bytes of what was gzipped. UsageError where it is damaged."""
    import gzip
    from io import BytesIO

    try:
        with gzip.GzipFile(fileobj=BytesIO(content)) as file:
            return file.read(most)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise UsageError(f"{name}: a damaged gzip file") from None


def _file_target(path: str | Path) -> Path:
    """Target of `path`, links followed. Devices, pipes and folders are never replaced. UsageError."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder")
    if os.path.lexists(target) and not target.is_file():
        raise UsageError(f"cannot write {path}: it is no regular file")
    return target


def _fresh(target: Path, kind: str = "tmp") -> Path:
    """A hidden name beside `target` that nobody else has, from which the next run on this machine tells whether its maker still lives."""
    name = os.fsdecode(os.fsencode(target.name)[:LONGEST_NAME])
    return target.with_name(f".{name}.{_machine()}-{os.getpid()}.{os.urandom(4).hex()}.{kind}")


@cache
def _machine() -> str:
    return f"{zlib.crc32(platform.node().encode()):08x}"


@cache
def _sweep(folder: Path) -> None:
    """Once in a process: remove what killed runs on this machine left in a folder. A result moved away comes back if it is missing."""
    try:
        left = sorted(os.listdir(folder))
    except OSError:
        return
    for match in filter(None, map(_LEFT.fullmatch, left)):
        name, machine, maker, kind = match.groups()
        if machine != _machine() or _lives(int(maker)):
            continue
        entry, target = folder / match[0], folder / name
        try:
            if kind == "old" and not os.path.lexists(target):
                entry.rename(target)
            elif entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        except OSError:
            continue  # somebody else's, or gone: no reason to refuse the run


def _lives(pid: int) -> bool:
    if os.name != "posix":
        return True  # elsewhere to ask is to kill
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass
    return True


@contextmanager
def replaced_directory(target: Path, owned: Sequence[str]) -> Iterator[Path]:
    """Yield a fresh directory beside `target`; on success it takes target's place, on any failure nothing is left.

    Made (and so proved writable) before the work starts. A kill at any moment leaves the old directory or, between two renames, none until
    the next run puts it back; never a mixture. Only regular files named in `owned` may be in an old directory: what is foreign is never
    moved or deleted. A link is followed.
    Raises UsageError when `target` cannot be such a directory.
    """
    target = Path(os.path.realpath(target))
    _sweep(target.parent)
    if target.is_dir():
        foreign = sorted(name for name in os.listdir(target) if name not in owned or not stat.S_ISREG((target / name).lstat().st_mode))
        if foreign:
            raise UsageError(f"{target}: holds {foreign[0]!r}, which is not part of a result; choose another directory")
    elif target.exists() or target.is_symlink():
        raise UsageError(f"{target}: not a directory")
    made = _make_parents(target.parent)
    staging = _fresh(target)
    try:
        try:
            staging.mkdir()
        except OSError as error:
            raise UsageError(f"cannot write into {target.parent}: {error.strerror}") from None
        with _named(target, staging):
            yield staging
            for file in staging.rglob("*"):
                if file.is_file():
                    _settle(file)
            with undisturbed():
                _swap(staging, target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        _remove_empty(made)
        raise


def _swap(staging: Path, target: Path) -> None:
    if not target.is_dir():
        staging.rename(target)
        return
    old = _fresh(target, "old")
    target.rename(old)
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


def cache_home() -> Path | None:
    """The user's folder of what can be made again, $XDG_CACHE_HOME/simctl or ~/.cache/simctl, there or not; None where there is no home."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(home):
        return Path(home, "simctl")
    try:
        return Path.home() / ".cache" / "simctl"
    except RuntimeError:
        return None
