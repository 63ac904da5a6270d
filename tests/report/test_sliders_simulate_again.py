"""`report --serve`: on the loopback alone, answers are those of `simctl simulate`, wrong questions are refused, and Ctrl-C ends it."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import h5py
import pytest

from sim.results.run_files import read_run_dataset
from simctl.options.file_options import options_of
from simctl.report import serve as served
from tests.browser import browser, installed
from tests.cli import run
from tests.report.drawn import check
from tests.report.results import ROOT, RUN, page_of, results

OWN = "request-rate=12&replicas=1&random-input-len=1024"


@pytest.fixture(scope="module")
def answers():
    file = results()["run"] / "run.nc"
    question = served.question_of(read_run_dataset(file)[1].attrs, file)
    return served.Answers(served.Question(question.given, question.sliders, 40))


@pytest.fixture(scope="module")
def address(answers):
    from simctl.report.of_run import part_of
    from simctl.report.page import render

    page = render([part_of(*read_run_dataset(results()["run"]))], "", answers.question)
    with served.server(served.routes_of(page, answers), 0) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def get(url, **headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60) as found:
            return found.status, found.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize("moved", [OWN, "request-rate=30&replicas=2&random-input-len=512"])
def test_an_answer_is_what_its_command_prints(address, moved):
    status, text = get(f"{address}answer?{moved}")
    assert status == 200
    found = json.loads(text)
    asked = dict(pair.split("=") for pair in moved.split("&"))
    words = shlex.split(found["command"])
    assert all(words[words.index(f"--{name}") + 1] == value for name, value in asked.items())
    said = json.loads(run(*words[1:], "--no-iterations", "--json").stdout)
    assert found["summary"] == {name: said[name] for name in found["summary"]}
    assert [row[0] for row in found["figures"]][:2] == ["Median TTFT", "P90 TTFT"]
    assert all("–" in end and len(end) > 1 for row in found["figures"] for end in row[2:])
    assert [picture["name"] for picture in found["pictures"]] == ["ttft", "tpot", "e2el"]


def test_the_own_values_ask_the_runs_own_question(answers):
    """But for the number of requests, what is simulated again is what the run was asked."""
    given = dict(zip(RUN[1::2], RUN[2::2], strict=True))
    options = options_of("simulate", answers.question.moved(answers.own()))
    assert (options["gpu"], options["model"]) == (given["--gpu"], given["--model"])
    assert (options["request_rate"], options["random_output_len"]) == (12.0, 20)
    assert (options["replicas"], options["random_input_len"], options["draws"]) == (1, 1024, None)
    assert options["num_prompts"] == 40


@pytest.mark.parametrize(
    "query",
    ["", "request-rate=12", f"{OWN}&replicas=2", f"{OWN}&gpu=A10", OWN.replace("12", "x"), OWN.replace("12", "nan"),
     OWN.replace("12", "1e9"), OWN.replace("s=1&", "s=1.5&"), OWN.replace("s=1&", "s=&"), OWN.replace("1024", "-1"), "%00"],
)  # fmt: skip
def test_a_wrong_question_is_one_line(address, query):
    status, text = get(f"{address}answer?{query}")
    assert (status, text.count("\n")) == (400, 1)
    assert list(json.loads(text)) == ["error"]


def test_what_the_model_refuses_is_an_answer(answers, monkeypatch):
    question = answers.question
    given = {**question.given, "num-gpu-blocks": "32"}
    few = served.Answers(served.Question(given, question.sliders, 40))
    status, body = few(OWN)
    assert status == 200
    assert list(body) == ["error"]


@pytest.mark.parametrize("headers", [{"Host": "evil.example"}, {"Host": "127.0.0.1:1"}, {"Sec-Fetch-Site": "cross-site"}])
@pytest.mark.parametrize("path", ["", f"answer?{OWN}"])
def test_only_pages_of_this_server_may_ask(address, headers, path):
    status, text = get(address + path, **headers)
    assert (status, text.count("\n")) == (403, 1)


def test_there_is_nothing_else(address):
    assert get(f"{address}../../etc/passwd")[0] == 404
    status, page = get(address)
    assert status == 200
    assert "connect-src 'self'" in page.replace("&#39;", "'")


def test_a_report_that_is_a_file_asks_nothing(tmp_path):
    text, _ = page_of(tmp_path / "r.html", results()["run"])
    assert "connect-src" not in text
    assert 'id="live"' not in text


def refused(path, *more):
    result = run("report", str(path), "--serve", *more)
    assert result.code != 0
    assert (result.stdout, result.stderr.count("\n")) == ("", 1), result.stderr
    return result.stderr


def changed(tmp_path, options):
    shutil.copytree(results()["run"], tmp_path / "run")
    with h5py.File(tmp_path / "run" / "run.nc", "r+") as file:
        if options is None:
            del file.attrs["options"]
        else:
            file.attrs["options"] = options
    return tmp_path / "run"


@pytest.mark.parametrize("kind", ["plan", "map", "posterior", "sweep"])
def test_only_a_run_can_be_asked_again(kind):
    refused(results()[kind])


@pytest.mark.parametrize("options", [None, "7", "[", '{"frobnicate": "1"}'])
def test_a_run_that_does_not_say_how_it_was_asked(tmp_path, options):
    assert "simulate it again" in refused(changed(tmp_path, options))


@pytest.mark.parametrize("options", ['{"gpu": "H100", "trace": "x.csv"}', '{"fleet": "x.yaml"}'])
def test_a_run_of_no_drawn_requests(tmp_path, options):
    assert "drawn" in refused(changed(tmp_path, options))


def test_a_run_of_a_file_of_rates(tmp_path):
    more = ("--posterior", str(results()["posterior"]), "--out", str(tmp_path / "run"))
    assert run(*RUN, "--draws", "0", *more).code == 0
    assert "where files lie" in refused(tmp_path / "run")


def test_a_run_that_names_code_imports_none(tmp_path):
    assert "import code" in refused(changed(tmp_path, '{"gpu": "H100", "engine": "os.path"}'))


def test_a_port_that_is_taken(address):
    refused(results()["run"], "--port", address.rsplit(":", 1)[1].strip("/"))


def test_it_writes_no_file(tmp_path):
    assert "--serve" in refused(results()["run"], "-o", str(tmp_path / "r.html"))
    assert "--serve" in run("report", str(results()["run"])).stderr


def test_it_ends_with_ctrl_c():
    command = [sys.executable, "-m", "simctl", "report", str(results()["run"]), "--serve"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        assert get(address)[0] == 200
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.slow
@pytest.mark.skipif(installed() is None, reason="no Chromium or Chrome is installed (apt-get install chromium)")
def test_a_slider_moves_the_figures(address, tmp_path):
    figure = "document.querySelector('#figures tbody tr:nth-child(4) td:nth-child(2)')?.textContent"
    with browser(tmp_path) as page:
        for width in (360, 768, 1280):
            for scheme in ("light", "dark"):
                page.open(address, width, scheme)
                before = page.value(figure)
                page.value("document.querySelector('#request-rate').focus()")
                page.key("End", 35)
                until = time.monotonic() + 120
                while page.value(figure) == before:
                    assert time.monotonic() < until, "no new figure"
                assert page.value("document.querySelector('#request-rate').getAttribute('aria-valuetext')") == "96 requests/s"
                assert page.value("[...document.querySelectorAll('.sliders input')].every(each => each.labels.length == 1)")
                check(page, width)
