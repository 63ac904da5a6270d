"""The next run removes what a killed one left beside its output, and nothing else; a result moved out of the way comes back."""

import signal
import subprocess
import sys
from pathlib import Path

from sim import files
from sim.files import replaced_directory, write_text

ROOT = Path(__file__).parents[2]
HANGS = {
    "folder": "from sim.files import replaced_directory\n"
    "with replaced_directory(target, ('a',)) as d:\n (d / 'a').write_text('new')\n wait()",
    "file": "from sim.files import replacing\nwith replacing(target) as f:\n f.write_text('new')\n wait()",
    "swap": "import sim.files\nsim.files.Path.rename = lambda a, b: (sim.files.os.rename(a, b), str(b).endswith('old') and wait())\n"
    "with sim.files.replaced_directory(target, ('a',)) as d:\n (d / 'a').write_text('new')",
}


def killed(kind, target):
    """Run what hangs as it writes to `target`, and kill it there."""
    wait = f"import pathlib\ntarget = pathlib.Path({str(target)!r})\ndef wait():\n import time\n print(flush=True)\n time.sleep(60)\n"
    child = subprocess.Popen([sys.executable, "-c", wait + HANGS[kind]], stdout=subprocess.PIPE, cwd=ROOT)
    assert child.stdout is not None
    child.stdout.readline()
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    files._sweep.cache_clear()  # this process is the next run
    return {each.name for each in target.parent.iterdir()}


def test_of_a_file(tmp_path):
    target = tmp_path / "plot.png"
    target.write_text("old")
    assert len(killed("file", target)) == 2
    assert target.read_text() == "old"
    write_text(tmp_path / "another.json", "{}")
    assert {each.name for each in tmp_path.iterdir()} == {"plot.png", "another.json"}


def test_of_a_folder(tmp_path):
    target = tmp_path / "out"
    assert len(killed("folder", target)) == 1
    with replaced_directory(target, ("a",)) as staging:
        (staging / "a").write_text("newer")
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


def test_a_result_moved_away_comes_back(tmp_path):
    target = tmp_path / "out"
    with replaced_directory(target, ("a",)) as staging:
        (staging / "a").write_text("old")
    assert "out" not in killed("swap", target)
    try:
        with replaced_directory(target, ("a",)) as staging:
            assert (target / "a").read_text() == "old"
            raise KeyboardInterrupt  # the second run fails: the first one's result is not lost
    except KeyboardInterrupt:
        pass
    assert (target / "a").read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


def test_nothing_else_is_touched(tmp_path):
    mine = files._fresh(tmp_path / "out")  # of a process that lives
    elsewhere = tmp_path / ".out.00000000-999999999.00000000.tmp"  # of another machine
    named = [tmp_path / name for name in (".out.tmp", "out.tmp", ".out.1.tmp", f".out.{files._machine()}-x.00000000.tmp")]
    for each in (mine, elsewhere, *named):
        each.write_text("x")
    files._sweep.cache_clear()
    write_text(tmp_path / "new", "x")
    assert {each.name for each in tmp_path.iterdir()} == {each.name for each in (mine, elsewhere, *named)} | {"new"}
