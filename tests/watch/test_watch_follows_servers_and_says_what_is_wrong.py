"""`simctl watch` follows servers, writes their load as a trace, and names what is wrong without a secret."""

import json
import socket
from itertools import count

import pytest
from click.testing import CliRunner

from sim.workload.jsonl import load_jsonl
from simctl.cli import main
from simctl.watch.follow import LoadTrace
from tests.twin.metrics_server import serving, vllm_metrics

WHERE = ["--gpu", "H100", "--model", "Llama-3.1-8B", "--every", "1"]


def watch(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of the command."""
    try:
        code = main(["watch", *words])
    except SystemExit as stop:
        code = stop.code
    out, err = capsys.readouterr()
    return int(code or 0), out, err


def test_windows_are_json_and_the_trace_is_read_by_simulate(capsys, tmp_path) -> None:
    turns, trace = count(), tmp_path / "load.jsonl"
    with serving(lambda _: (200, vllm_metrics(5 * next(turns)))) as url:
        words = [url, *WHERE, "--for", "2.5", "--json", "--slo", "ttft:p95<1s", "--trace", str(trace)]
        code, out, err = watch(capsys, *words)
    assert (code, err) == (0, "")
    reports = [json.loads(line) for line in out.splitlines()]
    assert len(reports) >= 3
    assert reports[-1]["servers_up"] == 1
    assert (reports[-1]["prompt_tokens"], reports[-1]["output_tokens"]) == (512.0, 64.0)
    assert {row["metric"] for row in reports[-1]["seen"][url]} == {"ttft", "tpot"}
    assert len(load_jsonl(trace)) == 5 * (len(reports) - 1)


def test_a_counter_that_jumps_writes_no_trace_and_files_are_rotated(tmp_path) -> None:
    trace = LoadTrace(tmp_path / "load.jsonl", rotates_at_bytes=10_000)
    assert "a counter jumped" in trace.add(0.0, 15.0, 4e6, 512.0, 64.0, 2)
    for window in range(40):
        assert trace.add(15.0 * window, 15.0, 30, 512.0, 64.0, 2) == ""
    sizes = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
    assert set(sizes) == {"load.jsonl", "load.jsonl.1"}
    assert max(sizes.values()) <= 10_000
    assert load_jsonl(tmp_path / "load.jsonl").arrival_s[-1] > load_jsonl(tmp_path / "load.jsonl.1").arrival_s[-1]


def test_a_page_for_others_needs_a_token_and_a_refusal_repeats_no_password(capsys, tmp_path) -> None:
    page = ["http://a", *WHERE, "--port", "0", "--for", "1"]
    assert "give --token-env" in watch(capsys, *page, "--bind", "0.0.0.0")[2]
    assert "holds no token" in watch(capsys, *page, "--bind", "0.0.0.0", "--token-env", "NOBODY_SET_THIS")[2]
    assert "--tls /nowhere" in watch(capsys, *page, "--tls", "/nowhere", "/nowhere")[2]
    assert "needs --port" in watch(capsys, "http://a", *WHERE, "--bind", "0.0.0.0")[2]
    for url in ("http://me:s3cret@host", "http://host/?key=s3cret", "ftp:me:s3cret@host", "s3cret:@x"):
        code, _, err = watch(capsys, url, *WHERE)
        assert code == 2
        assert "s3cret" not in err


def test_a_silent_server_and_one_of_another_kind_are_told(capsys) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        silent = f"http://127.0.0.1:{free.getsockname()[1]}"
    with serving(lambda _: (200, "up 1\n")) as url:
        code, out, _ = watch(capsys, url, silent, *WHERE, "--for", "0.5")
    assert code == 0
    assert f"ALERT {url}: silent (no metrics of an engine that is known (vllm, sglang))" in out
    assert f"ALERT {silent}: silent (" in out
    assert "0 of 2 up" in out


def test_no_secret_is_printed_even_where_the_server_repeats_it(capsys, monkeypatch) -> None:
    monkeypatch.setenv("THE_KEY", "sk-very-secret")
    with serving(lambda headers: (401, f"bad key: {headers['Authorization']} {headers['X-Team']}")) as url:
        words = [url, *WHERE, "--for", "0.5", "--api-key-env", "THE_KEY", "--header", "X-Team: blue-secret"]
        _, out, err = watch(capsys, *words)
    assert "HTTP 401" in out
    assert "secret" not in out + err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["http://a", "http://a", *WHERE], "given twice"),
        (["ftp://a", *WHERE], "not an http(s) URL"),
        (WHERE, "give their URLs, or --targets FILE"),
        (["--targets", "/nowhere/targets.json", *WHERE], "--targets /nowhere/targets.json"),
        (["http://u:p@a", *WHERE], "without user"),
        (["http://a", *WHERE, "--slo", "good>=99%"], "good"),
        (["http://a", *WHERE, "--slo", "failed<1%"], "do not say this"),
        (["http://a", "--model", "Llama-3.1-8B", "--gpu", "A1O"], "A1O"),
        (["http://a", *WHERE, "--trace", "/nowhere/load.jsonl"], "/nowhere"),
    ],
)
def test_bad_words_are_one_line(capsys, words, said) -> None:
    code, out, err = watch(capsys, *words)
    assert code == 2
    assert out == ""
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_servers_come_and_go_with_the_file_of_targets(capsys, tmp_path) -> None:
    turns, targets = count(), tmp_path / "targets.json"

    def answer(_: dict[str, str]) -> tuple[int, str]:
        if next(turns) == 2:  # from then on another one, too; a file half written is passed over
            targets.write_text("[{")
        elif next(turns) > 2:
            targets.write_text(json.dumps([{"targets": [host, "127.0.0.1:9"], "labels": {"job": "vllm"}}]))
        return 200, vllm_metrics(next(turns))

    with serving(answer) as url:
        host = url.removeprefix("http://")
        targets.write_text(json.dumps([{"targets": [host]}]))
        code, out, err = watch(capsys, "--targets", str(targets), *WHERE, "--for", "4")
    assert code == 0
    assert " 1 of 1 up" in out
    assert " 1 of 2 up" in out
    assert "ALERT http://127.0.0.1:9: silent" in out
    assert all("the servers of before are watched" in line for line in err.splitlines())


def test_help_names_the_example() -> None:
    from simctl.commands.watch_command import command

    assert "simctl watch http://localhost:8000" in CliRunner().invoke(command, ["--help"]).output
