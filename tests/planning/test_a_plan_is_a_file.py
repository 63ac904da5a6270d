"""A plan file is emitted, reported, asked again and gone on with; what is gone on with ends as what was never stopped."""

import json
from itertools import count

import pytest
import yaml

from sim.planning.plan_file import MARK, VERSION
from tests.cli import run
from tests.twin.metrics_server import serving, vllm_metrics

ASKED = (
    *("plan", "--gpu", "L4,A10", "--model", "Llama-3.1-8B", "--request-rate", "4", "--random-output-len", "32", "--workers", "1"),
    *("--slo", "ttft:p90<2s tpot:mean<60ms", "--quick"),
)


@pytest.fixture(scope="module")
def cut_short(tmp_path_factory):
    file = tmp_path_factory.mktemp("plan") / "plan.json"
    done = run(*ASKED, "--within", "0.05s", "-o", str(file))
    assert done.code in (0, 1), done.stderr
    assert not json.loads(file.read_text())["answer"]["finished"]
    return file


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    file = tmp_path_factory.mktemp("plan") / "plan.json"
    assert run(*ASKED, "--within", "10m", "-o", str(file)).code == 0
    return file


def test_what_goes_on_ends_as_what_was_never_stopped(cut_short, whole):
    done = run("plan", str(cut_short), "--more-time", "--quick", "--within", "10m", "--workers", "1", "--json")
    assert done.code == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(whole.read_text())["answer"]


def test_a_decided_plan_is_gone_on_with_without_a_trial(whole, monkeypatch):
    monkeypatch.setattr("sim.planning.trials.Here.one", None)
    done = run("plan", str(whole), "--more-time", "--quick", "--workers", "1", "--json")
    assert json.loads(done.stdout) == json.loads(whole.read_text())["answer"]


def test_a_plan_is_emitted_without_a_trial(whole, monkeypatch):
    monkeypatch.setattr("sim.planning.trials.Here.one", None)
    emitted = run("plan", str(whole), "--emit", "compose")
    assert emitted.code == 0, emitted.stderr
    winner = json.loads(whole.read_text())["answer"]["winner"]
    services = yaml.safe_load(emitted.stdout)["services"]
    assert sum(name != "router" for name in services) == winner["replicas"]
    assert "UNDECIDED" not in emitted.stdout


def test_an_undecided_plan_is_emitted_marked_so(whole, tmp_path):
    found = json.loads(whole.read_text())
    found["trials"] = {name: {count: some[:40] for count, some in counts.items()} for name, counts in found["trials"].items()}
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(found))
    emitted = run("plan", str(file), "--emit", "vllm")
    assert emitted.code == 1
    assert emitted.stdout.startswith("# UNDECIDED: the plan ended before")
    assert "vllm serve" in emitted.stdout


def test_what_was_hardly_tried_is_not_emitted(whole, tmp_path):
    found = json.loads(whole.read_text()) | {"trials": {}}
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(found))
    emitted = run("plan", str(file), "--emit", "vllm")
    assert (emitted.code, emitted.stdout) == (2, "")
    assert "no count was tried often enough to be started" in emitted.stderr


def test_a_plan_is_reported(whole, tmp_path):
    pytest.importorskip("vl_convert")
    assert run("report", str(whole), "-o", str(tmp_path / "report.html")).code == 0


def test_a_plan_is_watched(whole):
    turns, planned = count(), json.loads(whole.read_text())["answer"]["winner"]["replicas"]
    with serving(lambda _: (200, vllm_metrics(5 * next(turns)))) as url:
        done = run("watch", url, "--plan", str(whole), "--every", "1", "--for", "1.5", "--json")
    assert done.code == 0, done.stderr
    assert f"{planned} replicas planned, 1 watched." in " ".join(done.stderr.split())
    assert json.loads(done.stdout.splitlines()[-1])["servers_up"] == 1


def other_version(found):
    return found | {MARK: VERSION + 1}


def damaged(found):
    return {name: value for name, value in found.items() if name != "trials"}


def a_class(found):
    return found | {"arguments": [*found["arguments"], "--engine", "os.system"]}


def no_option(found):
    return found | {"arguments": [*found["arguments"], "--frobnicate"]}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (other_version, "a plan file of version 3, and this simctl reads version 2: plan it again"),
        (damaged, "a damaged plan file"),
        (a_class, "names a class, os.system"),
        (no_option, "No such option"),
    ],
)
def test_what_cannot_be_read_is_one_line(whole, tmp_path, change, why):
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(change(json.loads(whole.read_text()))))
    done = run("plan", str(file), "--emit", "vllm")
    assert (done.code, done.stdout) == (2, "")
    assert why in " ".join(done.stderr.split())


def test_trials_of_other_code_are_not_gone_on_with(whole, tmp_path):
    found = json.loads(whole.read_text())
    found["made_by"]["code"] = "0"
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(found))
    done = run("plan", str(file), "--more-time")
    assert (done.code, done.stdout) == (2, "")
    assert "its trials are of another simctl" in " ".join(done.stderr.split())


def test_more_time_is_of_a_plan(tmp_path):
    done = run(*ASKED, "--more-time")
    assert done.code == 2
    assert "--more-time goes on with a plan" in " ".join(done.stderr.split())
