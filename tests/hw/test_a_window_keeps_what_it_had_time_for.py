"""`python -m hw.window`: steps in order, each in its time; what ran is packed; the same folder goes on; every plan's commands parse."""

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import click.testing
import pytest

from hw import window
from hw.command import command as measure
from hw.window_plans import PLANS, Plan, Step
from sim.errors import UsageError


def script(name: str, text: str, *, most_s: float = 60.0, least_s: float = 1.0, **more: object) -> Step:
    return Step(name, ("-c", f"import pathlib, time, sys, os; out = pathlib.Path(r'{{out}}'); {text}"), most_s, least_s, 0.0, **more)


def plan(*steps: Step) -> Plan:
    return Plan("a test", None, 0, steps)


def names(archive: Path) -> set[str]:
    with tarfile.open(archive) as packed:
        return set(packed.getnames())


def test_steps_run_in_order_and_are_packed_into_one_file(tmp_path: Path) -> None:
    steps = plan(
        script("first", "(out / 'a').write_text('1'); print('said')"), script("second", "assert (out.parent / '1-first/a').exists()")
    )
    rows = window.run("w", steps, tmp_path, 60.0)
    assert [(r["name"], r["status"]) for r in rows] == [("first", "ok"), ("second", "ok")]
    assert (tmp_path / "1-first" / "log").read_text() == "said\n"
    assert {"w/window.json", "w/1-first/a", "w/2-second/log"} <= names(tmp_path / "w.tar.xz")
    assert json.loads((tmp_path / "window.json").read_text())["steps"] == rows
    assert not (tmp_path / "window.tmp").exists()


def test_a_failed_step_stops_no_other_and_its_last_words_are_kept(tmp_path: Path) -> None:
    rows = window.run("w", plan(script("bad", "print('no such thing'); sys.exit(3)"), script("good", "pass")), tmp_path, 60.0)
    assert rows[0]["status"] == "failed: exit 3: no such thing"
    assert rows[1]["status"] == "ok"


def test_what_this_machine_lacks_is_said(tmp_path: Path) -> None:
    lacking = [script("a", "pass", needs=("no_such_module",)), Step("b", ("x",), 9.0, 1.0, program="no-such-program")]
    rows = window.run("w", plan(*lacking), tmp_path, 60.0)
    assert [r["status"] for r in rows] == ["skipped: not importable: no_such_module", "skipped: no-such-program is not on the path"]


def test_a_step_out_of_time_is_asked_to_stop_and_then_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "GRACE_S", 1.5)
    polite = "import signal; signal.signal(signal.SIGTERM, lambda *_: ((out / 'kept').write_text('half'), sys.exit(0))); time.sleep(60)"
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); (out / 'pid').write_text(str(os.getpid())); time.sleep(60)"
    start = time.monotonic()
    rows = window.run("w", plan(script("polite", polite, most_s=4.0), script("deaf", deaf, most_s=4.0)), tmp_path, 60.0)
    assert time.monotonic() - start < 30
    assert [r["status"] for r in rows] == ["cut: out of time"] * 2
    assert (tmp_path / "1-polite" / "kept").read_text() == "half"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "2-deaf" / "pid").read_text()), 0)


def test_a_step_is_not_begun_where_its_least_does_not_fit(tmp_path: Path) -> None:
    now = [0.0]
    rows = window.run("w", plan(script("long", "pass", least_s=100.0), script("short", "pass")), tmp_path, 60.0, clock=lambda: now[0])
    assert rows[0]["status"] == "not begun: 55 s left, worth it from 100 s"
    assert rows[1]["status"] == "ok"


def test_the_same_folder_goes_on_with_what_is_unfinished(tmp_path: Path) -> None:
    count = "(out / 'runs').open('a').write('x'); "
    cut = count + "j = out / 's.journal.jsonl'; j.unlink() if j.exists() else j.write_text('1')"
    steps = plan(script("done", count), script("cut", cut))
    assert [r["status"] for r in window.run("w", steps, tmp_path, 60.0)] == ["ok", "cut: budget spent"]
    assert [r["status"] for r in window.run("w", steps, tmp_path, 60.0)] == ["ok", "ok"]
    assert (tmp_path / "1-done" / "runs").read_text() == "x"
    assert (tmp_path / "2-cut" / "runs").read_text() == "xx"
    with pytest.raises(UsageError, match="holds the window 'w'"):
        window.run("other", steps, tmp_path, 60.0)
    (tmp_path / "window.json").write_text("{}")
    with pytest.raises(UsageError, match="not the record of a window"):
        window.run("w", steps, tmp_path, 60.0)


def test_an_interrupted_window_has_packed_what_was_there(tmp_path: Path) -> None:
    program = f"""
import sys; sys.path.insert(0, {str(Path.cwd())!r})
from hw import window, window_plans
from hw.window_plans import Plan, Step
wait = Step("wait", ("-c", "import pathlib, time; pathlib.Path(r'{{out}}', 'begun').write_text('1'); time.sleep(60)"), 60.0, 1.0, 0.0)
window.PLANS["cpu"] = Plan("a test", None, 0, (wait,))
window.main()
"""
    process = subprocess.Popen([sys.executable, "-c", program, "cpu", "-o", str(tmp_path)], stderr=subprocess.PIPE, text=True)
    for _ in range(600):
        if (tmp_path / "1-wait" / "begun").exists():
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "what was measured is kept" in said
    assert "cpu/1-wait/begun" in names(tmp_path / "cpu.tar.xz")
    assert json.loads((tmp_path / "window.json").read_text())["steps"][0]["status"] == "interrupted"


@pytest.mark.parametrize("name", PLANS)
def test_every_plan_is_made_of_commands_that_parse(name: str, tmp_path: Path) -> None:
    for step in PLANS[name].steps:
        assert step.start_s + window.GRACE_S < step.least_s <= step.most_s or not any("{budget}" in word for word in step.command)
        call = window.call_of(step, tmp_path, step.most_s)
        if call[1:3] == ["-m", "hw"]:
            context = measure.make_context("hw", call[3:])
            assert context.params["budget"] <= step.most_s
            assert context.params["out"] == tmp_path
        if call[1:3] == ["-m", "kernels.bench"]:
            assert "--budget" in call
    result = click.testing.CliRunner().invoke(window.command, [name, "-o", str(tmp_path / "none"), "--dry-run"])
    assert result.exit_code == 0
    assert all(step.name in result.output for step in PLANS[name].steps)
    assert not (tmp_path / "none").exists()


def test_the_page_lists_every_plan() -> None:
    page = (Path(__file__).parents[2] / "docs" / "measure.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    assert [row.split("`")[1] for row in rows] == list(PLANS)


def test_a_window_for_a_gpu_is_refused_where_there_is_none(tmp_path: Path) -> None:
    result = click.testing.CliRunner().invoke(window.command, ["h100-fp8", "-o", str(tmp_path / "none")])
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one here")
    assert isinstance(result.exception, UsageError)
    assert not (tmp_path / "none").exists()
