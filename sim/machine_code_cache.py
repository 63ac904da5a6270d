"""Cache of machine code on disk: files that only their owner can write, each known by a digest of its content.

What is read is a regular file of this user in a folder of this user, writable by nobody else, that equals its digest; anything else counts
as absent. It is loaded from memory, so that no later change of the file reaches a running program. A file is

    b"simctl machine code 1 " + SHA-256 in hex + b"\n" + content
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from sim.errors import SimctlError
from sim.files import cache_home, replacing

MOST_BYTES = 256 << 20  # of all folders: one is 0.2 MB, made anew for every version of the formula, of Python and of the processor
_MARK = b"simctl machine code 1 "
_HEADER = len(_MARK) + 64 + 1
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_REACHED = "others can write to it"
_open_libraries: list[int] = []  # a loaded library is known by the path of its descriptor: a number used again would name the first one


class Entry(NamedTuple):
    """A folder of the cache: machine code of one set of sources."""

    folder: Path
    size_bytes: int
    used_s: float  # Unix time of the last reading or writing
    fault: str  # why it is not read; empty: it is


def root() -> Path | None:
    """The folder of the cache, there or not; None where this user has no home."""
    home = cache_home()
    return None if home is None else home / "machine-code"


def read(path: Path) -> bytes | None:
    """Content of a file as `keep` wrote it, or None: absent, damaged, or in reach of other users."""
    content = _content(path)
    if content is not None:
        with suppress(OSError):
            os.utime(path.parent)
    return content


def keep(path: Path, content: bytes) -> None:
    """Write a file that `read` takes; what others could have written beside it goes. Raises OSError."""
    prepare(path.parent)
    with replacing(path) as temporary:
        temporary.write_bytes(_header(content) + content)
        temporary.chmod(0o600)
    _shrink(path.parent)


def prepare(folder: Path) -> None:
    """Make a folder of the cache, or prove that it takes files. Raises OSError."""
    home = folder.parent.parent
    home.parent.mkdir(parents=True, exist_ok=True)
    for each in (home, folder.parent, folder):
        each.mkdir(mode=0o700, exist_ok=True)
        if fault := _fault_of_folder(each):
            if fault != _REACHED:
                raise PermissionError(0, fault, str(each))
            if each == folder:
                _empty(each)
            each.chmod(0o700)
    with tempfile.TemporaryFile(dir=folder) as probe:
        probe.write(b"probe")


def library(content: bytes) -> ctypes.CDLL:
    """A shared library loaded from memory. Raises OSError where this system loads none so."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, "code")
            copy.write_bytes(content)
            return ctypes.CDLL(str(copy))
    descriptor = os.memfd_create("simctl")
    _open_libraries.append(descriptor)
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    return ctypes.CDLL(f"/proc/self/fd/{descriptor}")


def entries() -> list[Entry]:
    """Folders of the cache, those used last first."""
    place = root()
    if place is None or not place.is_dir():
        return []
    found = []
    for each in place.iterdir():
        with suppress(FileNotFoundError):  # another process writes or removes it right now
            found += [_entry(each)] if each.is_dir() else []
    return sorted(found, key=lambda entry: -entry.used_s)


def clear() -> None:
    """Remove all of the cache. Raises SimctlError where some of it stays."""
    for entry in entries():
        try:
            entry.folder.unlink() if entry.folder.is_symlink() else shutil.rmtree(entry.folder)
        except OSError as error:
            raise SimctlError(f"cannot remove {entry.folder}: {error.strerror}") from None


def _content(path: Path) -> bytes | None:
    if _fault_of_folder(path.parent):
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if _fault(status, stat.S_ISREG, "no regular file") or status.st_size > MOST_BYTES:
            return None
        with open(descriptor, "rb", closefd=False) as file:
            whole = file.read()
    except OSError:
        return None
    finally:
        os.close(descriptor)
    content = whole[_HEADER:]
    return content if whole[:_HEADER] == _header(content) else None


def _entry(folder: Path) -> Entry:
    status = folder.lstat()
    fault = _fault_of_folder(folder)
    if fault and fault != _REACHED:
        return Entry(folder, 0, status.st_mtime, fault)
    files = [each for each in folder.iterdir() if each.is_file()]
    if not fault and not any(_content(each) is not None for each in files):
        fault = "damaged"
    return Entry(folder, sum(each.stat().st_size for each in files), status.st_mtime, fault)


def _shrink(kept: Path) -> None:
    """Remove the folders that were used longest ago, until the others have room; never the one just written."""
    room = MOST_BYTES
    for entry in sorted(entries(), key=lambda entry: entry.folder != kept):
        room -= entry.size_bytes
        if room < 0 and entry.folder != kept:
            shutil.rmtree(entry.folder, ignore_errors=True)


def _header(content: bytes) -> bytes:
    return _MARK + hashlib.sha256(content).hexdigest().encode() + b"\n"


def _fault_of_folder(folder: Path) -> str:
    try:
        return _fault(folder.lstat(), stat.S_ISDIR, "no folder")
    except OSError as error:
        return error.strerror or "unreadable"


def _fault(status: os.stat_result, kind: Callable[[int], bool], other: str) -> str:
    """Why a file or folder is not read; empty: nothing. Where there are no users, everything is one's own."""
    if not kind(status.st_mode):
        return other
    if os.name != "posix":
        return ""
    if status.st_uid != os.geteuid():
        return f"it belongs to user {status.st_uid}"
    return _REACHED if status.st_mode & _WRITABLE_BY_OTHERS else ""


def _empty(folder: Path) -> None:
    for each in folder.iterdir():
        shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
