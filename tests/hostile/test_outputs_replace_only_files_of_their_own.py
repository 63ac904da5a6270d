"""What a command is told to write to is replaced only where it is a regular file, or a folder of its own; links are followed."""

import os
import stat

import pytest

from sim.errors import UsageError
from sim.files import replaced_directory, replacing, write_text
from tests.cli import run

RUN = ("simulate", "--gpu", "A10", "--max-model-len", "auto", "--num-prompts", "3", "--draws", "0")
FILES = {"--chrome-trace": "trace.json", "--plot": "plot.png"}


def node(path, kind):
    """Something at `path` that is no regular file."""
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        try:
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("only root makes device nodes")


@pytest.mark.parametrize("option", [*FILES, "--out"])
@pytest.mark.parametrize("kind", ["FIFO", "device", "folder"])
@pytest.mark.parametrize("linked", [False, True])
def test_what_is_no_file_survives(option, kind, linked, tmp_path):
    real, given = tmp_path / "real", tmp_path / FILES.get(option, "out")
    there = real if linked else given
    node(there, kind)
    if linked:
        given.symlink_to(real)
    before = os.lstat(there)
    result = run(*RUN, option, str(given))
    if kind == "folder" and option == "--out":  # an empty folder is as good as one of our own
        assert result.code == 0
        return
    assert (result.code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert given.name in result.stderr or "real" in result.stderr
    after = os.lstat(there)
    assert (after.st_mode, after.st_ino, after.st_rdev) == (before.st_mode, before.st_ino, before.st_rdev)
    assert len(list(tmp_path.iterdir())) == 1 + linked


@pytest.mark.parametrize("option", FILES)
def test_links_to_files_are_followed(option, tmp_path):
    real, given = tmp_path / "kept" / FILES[option], tmp_path / FILES[option]
    real.parent.mkdir()
    for already in (False, True):  # a link that leads nowhere yet makes its file there
        if already:
            real.write_text("old")
        given.unlink(missing_ok=True)
        given.symlink_to(real)
        assert run(*RUN, option, str(given)).code == 0
        assert given.is_symlink()
        assert real.stat().st_size > 100
    assert len(list(tmp_path.rglob("*"))) == 3


def test_links_to_folders_are_followed(tmp_path):
    real, given = tmp_path / "kept", tmp_path / "out"
    given.symlink_to(real)
    for _ in range(2):
        assert run(*RUN, "--out", str(given)).code == 0
        assert given.is_symlink()
        assert sorted(each.name for each in real.iterdir()) == ["run.nc", "summary.json"]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["kept", "out"]


def test_a_link_to_itself_is_refused(tmp_path):
    given = tmp_path / "plot.png"
    given.symlink_to(given)
    assert run(*RUN, "--plot", str(given)).code == 2
    assert given.is_symlink()


def test_a_folder_with_something_else_by_a_name_of_ours_is_foreign(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    os.mkfifo(out / "run.nc")
    result = run(*RUN, "--out", str(out))
    assert result.code == 2
    assert "holds 'run.nc', which is not part of a result" in result.stderr
    assert stat.S_ISFIFO((out / "run.nc").lstat().st_mode)


def test_every_writer_goes_by_it(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="pipe: it is no regular file"):
        write_text(tmp_path / "pipe", "x")
    with pytest.raises(UsageError, match="not a directory"), replaced_directory(tmp_path / "pipe", ()):
        pass
    assert [each.name for each in tmp_path.iterdir()] == ["pipe"]


def test_nobody_can_lay_a_link_where_the_temporary_file_will_be(tmp_path, monkeypatch):
    monkeypatch.setattr("os.urandom", lambda count: b"\0" * count)
    victim = tmp_path / "victim"
    victim.write_text("mine")
    with replacing(tmp_path / "plot.png") as temporary:
        name = temporary.name
    (tmp_path / "plot.png").unlink()
    (tmp_path / name).symlink_to(victim)
    with pytest.raises(FileExistsError), replacing(tmp_path / "plot.png") as temporary:
        temporary.write_text("theirs")
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("command", ["what-if --ctx 8K", "what-if --ctx 64K --map hbm"])
def test_other_commands_too(command, tmp_path):
    os.mkfifo(tmp_path / "out.nc")
    result = run(*command.split(), "--gpu", "A10", "--out", str(tmp_path / "out.nc"))
    assert (result.code, result.stderr.count("\n")) == (2, 1)
    assert "out.nc: it is no regular file" in result.stderr
