"""The cache of machine code: what is damaged, foreign or writable by others counts as absent, and is made again."""

import ctypes
import os
import random
import shutil
import subprocess

import pytest

from sim import machine_code_cache
from sim.cluster import compiled
from sim.errors import SimctlError
from tests.cli import run

needs_compiler = pytest.mark.skipif(not shutil.which("cc"), reason="no compiler")
SOURCE = """
    #include <stdio.h>
    #include <stdlib.h>
    #include <stdint.h>
    int64_t from_block(void *block) { return 42; }
    #ifdef FOREIGN
    __attribute__((constructor)) static void planted(void) { fclose(fopen(FOREIGN, "w")); }
    #endif
"""


def built(folder, *options):
    """Bytes of what the compiler makes of the source."""
    (folder / "code.c").write_text(SOURCE)
    subprocess.run(["cc", *options, "-fPIC", "-o", folder / "code", folder / "code.c"], check=True)
    return (folder / "code").read_bytes()


def _flip(path, draw):
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def _truncate(path, draw):
    os.truncate(path, draw.randrange(path.stat().st_size))


def _overwrite(path, draw):
    with path.open("r+b") as file:
        file.seek(draw.randrange(path.stat().st_size - 64))
        file.write(draw.randbytes(64))


def _append(path, draw):
    path.write_bytes(path.read_bytes() + draw.randbytes(draw.randrange(1, 5000)))


def _replaced(made):
    """Another's code in its place, with or without a digest of its own, where others may write or by a link."""

    def damage(path, draw):
        content = draw.choice([made, machine_code_cache._header(made) + made])
        way = draw.choice(["folder", "file", "link"] if content is not made else ["plain", "folder"])
        path.unlink()
        if way == "link":
            path.with_name("elsewhere").write_bytes(content)
            path.symlink_to("elsewhere")
        else:
            path.write_bytes(content)
        if way == "folder":
            path.parent.chmod(draw.choice([0o777, 0o775, 0o1777, 0o702]))
        if way == "file":
            path.chmod(draw.choice([0o666, 0o664, 0o602]))

    return damage


def _no_file(path, draw):
    path.unlink()
    draw.choice([path.mkdir, lambda: os.mkfifo(path), lambda: path.symlink_to("/dev/zero")])()


def _of_another_user(path, draw):
    os.chown(draw.choice([path, path.parent]), 12345, 12345)


@needs_compiler
def test_two_hundred_damages_load_nothing(tmp_path):
    own, mark = built(tmp_path, "-shared"), tmp_path / "foreign code ran"
    foreign = built(tmp_path, "-shared", f'-DFOREIGN="{mark}"')
    ways = [_flip, _truncate, _overwrite, _append, _replaced(foreign), _no_file, *([_of_another_user] if os.geteuid() == 0 else [])]
    draw = random.Random(54)
    for number in range(200):
        path = tmp_path / "cache" / "simctl" / "machine-code" / f"{number}" / "code.library"
        machine_code_cache.keep(path, own)
        assert machine_code_cache.read(path) == own
        draw.choice(ways)(path, draw)
        if (content := machine_code_cache.read(path)) is not None:
            machine_code_cache.library(content)
            pytest.fail(f"damage {number} was read")
    assert not mark.exists()
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(("from_block", machine_code_cache.library(own)))
    assert function(None) == 42


@needs_compiler
@pytest.mark.skipif(not compiled.available(), reason="llvmlite is not installed")
@pytest.mark.parametrize("damaged", [(), ("library",), ("object",), ("library", "object")], ids="-".join)
def test_what_is_damaged_is_made_again(tmp_path, monkeypatch, damaged):
    folder, made = tmp_path / "simctl" / "machine-code" / "version", []
    monkeypatch.setattr(compiled, "cache_directory", lambda: folder)
    code = built(tmp_path, "-c")

    def make():
        made.append(1)
        return code

    compiled._from_cache("layout", make)
    for name in damaged:
        os.truncate(folder / f"layout.{name}", 300)
    function = compiled._from_cache("layout", make)
    assert function(ctypes.addressof(ctypes.c_int64())) == 42
    assert len(made) == 1 + (len(damaged) == 2)
    if "library" in damaged:
        assert machine_code_cache.read(folder / "layout.library")


def test_the_folders_used_longest_ago_go_when_it_is_full(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(machine_code_cache, "MOST_BYTES", 2500)
    for age, name in enumerate(["old", "older", "oldest"]):
        machine_code_cache.keep(machine_code_cache.root() / name / "code", bytes(600))
        os.utime(machine_code_cache.root() / name, (1e9 - age, 1e9 - age))
    assert machine_code_cache.read(machine_code_cache.root() / "oldest" / "code")  # and so used last
    machine_code_cache.keep(machine_code_cache.root() / "new" / "code", bytes(600))
    assert {each.folder.name for each in machine_code_cache.entries()} == {"new", "oldest", "old"}


def test_the_command_shows_what_is_not_used_and_clears_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = machine_code_cache.root() / "0123456789abcdef" / "code.object"
    machine_code_cache.keep(path, b"code")
    assert "of another version" in run("cache").stdout
    path.parent.chmod(0o777)
    assert "not used: others can write to it" in run("cache").stdout
    assert "0.0 MB of at most" in run("cache", "--clear").stdout
    assert not path.exists()


def test_no_folder_is_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "cache_directory", lambda: tmp_path / "simctl" / "machine-code" / "version")
    (tmp_path / "simctl").write_text("in its way")
    with pytest.raises(SimctlError, match=r"machine code cannot be kept in .*simctl"):
        compiled.checked_cache()
