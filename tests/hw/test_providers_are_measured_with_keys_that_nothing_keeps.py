"""`--url` with a key, headers, chat and text: what is sent is what any provider takes, and the key is in no file and no message."""

import shutil
import ssl
import subprocess
from pathlib import Path

import numpy as np
import pytest

from hw.artifact import load
from hw.serve import http_stream
from hw.serve.client import Target, complete
from sim.errors import SimctlError, UsageError
from tests.hw.test_any_server_is_measured_by_url import in_thread, invoke
from tests.hw.toy_server import ToyServer, running
from tests.hw.virtual_time import run_virtual

KEY, TEAM = "sk-secret-0123456789", "team-secret"
PLAIN = {"model", "max_tokens", "temperature", "stream", "stream_options"}
FACTS = {"at", "path", "head"}  # that the toy server adds


def measured(url: str, out: Path, *more: str):  # type: ignore[no-untyped-def]
    return invoke("--hw", "cpu", "--url", url, "--model", "m", "-o", str(out), "--experiments", "ladder*", *more)


def kept(folder: Path) -> str:
    """Every file: the measurement, uncompressed, and the journal, which a finished run would remove."""
    texts = [str(load(path, "served").to_dict()) for path in folder.glob("*.nc")]
    return "".join([*texts, *(path.read_text(encoding="utf-8", errors="replace") for path in folder.rglob("*") if path.is_file())])


@pytest.fixture(autouse=True)
def _journals_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "unlink", lambda self, missing_ok=False: None)


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_a_provider_is_sent_text_and_the_key(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", f"{KEY}\n")
    server = ToyServer(ttft_s=lambda prompt: 0.01, gap_s=lambda streams: 0.002, tell="total", manners="merged")
    with in_thread(server) as url:
        result = measured(
            f"{url}/api/v1", tmp_path, "--endpoint", endpoint, "--prompts", "text", "--api-key-env", "MY_KEY", "--header", f"X-Team: {TEAM}"
        )
    assert result.exception is None, result.output
    data = load(tmp_path / "served_m_url.nc", "served")
    assert data.void.values.astype(str).tolist() == [""] * 4
    assert (data.attrs["client"], data.attrs["endpoint"]) == ("text", endpoint)
    for seen in server.seen:
        assert seen["path"] == ("/api/v1/chat/completions" if endpoint == "chat" else "/api/v1/completions")
        assert seen.keys() - FACTS == PLAIN | {"messages" if endpoint == "chat" else "prompt"}
        assert seen["stream_options"] == {"include_usage": True}
        assert f"\r\nAuthorization: Bearer {KEY}\r\n" in seen["head"]
        assert f"\r\nX-Team: {TEAM}\r\n" in seen["head"]
    # the words asked for, and those of the request to go on writing: as the server counted them
    assert len(set((data.prompt_tokens.values - 128).tolist())) == 1
    assert data.prompt_tokens.values.min() > 128
    assert (data.output_tokens.values == data.asked_tokens.values).all()
    assert list(tmp_path.glob("*.journal.jsonl"))
    assert KEY not in kept(tmp_path) + result.output
    assert TEAM not in kept(tmp_path) + result.output


@pytest.mark.parametrize("bad", [lambda number: True, lambda number: number > 1])
def test_no_file_or_message_holds_a_key_that_the_server_repeats(bad, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    """At the first request, which ends the run, and later, where the journal keeps what was said."""
    monkeypatch.setenv("MY_KEY", KEY)
    with in_thread(ToyServer(manners="echo", bad=bad)) as url:
        result = measured(url, tmp_path, "--api-key-env", "MY_KEY", "--header", f"X-Team: {TEAM}", "--budget-s", "20")
    told = result.output + str(result.exception) + kept(tmp_path)
    assert "HTTP 401" in told
    # a cut of the message must leave no part of it either
    for secret in (KEY, TEAM):
        assert secret[:8] not in told


def test_the_default_key_is_not_sent_in_the_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server = ToyServer(manners="refuse")
    with in_thread(server) as url:
        measured(url, tmp_path)
        assert KEY not in server.seen[-1]["head"]
        measured(url, tmp_path, "--api-key-env", "OPENAI_API_KEY")
        assert KEY in server.seen[-1]["head"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_over_https_the_default_key_is_sent_once_the_server_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1 -keyout {} -out {}"
    subprocess.run(make.format(key, cert).split(), check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    server = ToyServer(manners="refuse")
    http_stream._tls.cache_clear()
    with in_thread(server, context) as url:
        result = measured(url, tmp_path / "out")
        assert "certificate" in str(result.exception).lower()
        assert server.seen == []
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        http_stream._tls.cache_clear()
        result = measured(url, tmp_path / "out")
    http_stream._tls.cache_clear()
    assert "HTTP 500" in str(result.exception)
    assert f"Bearer {KEY}" in server.seen[0]["head"]


@pytest.mark.parametrize("words", [0, 7])
def test_tokens_counted_at_the_end_lie_between_first_and_last_piece(words: int) -> None:
    """Two tokens to a piece, asked for 20; an answer that ends by itself is whole, too."""

    async def program() -> None:
        server = ToyServer(gap_s=lambda streams: 0.02, tell="total", manners="merged", words=words)
        async with running(server) as url:
            record = await complete(Target(url, "m", text=True, chat=True), list(range(30)), 20)
            assert record.ok
            assert len(record.token_s) == (words or 20)
            assert record.token_s[0] - record.sent_s == pytest.approx(0.1)
            assert record.token_s[-1] == record.finish_s
            assert (np.diff(record.token_s) >= 0).all()
            assert record.cached_tokens == 0

    run_virtual(program())


def test_without_a_count_of_tokens_a_text_is_no_measurement() -> None:
    async def program() -> str:
        async with running(ToyServer(tell="total", manners="mute")) as url:
            return (await complete(Target(url, "m", text=True), [1, 2, 3], 8)).error

    assert "no usage" in run_virtual(program())


def test_the_target_shows_no_header() -> None:
    assert KEY not in repr(Target("http://h", "m", headers={"Authorization": KEY}))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--url", "http://127.0.0.1:9", "--api-key-env", "NOT_SET_ANYWHERE"], "NOT_SET_ANYWHERE is not set"),
        (["--url", "http://127.0.0.1:9", "--api-key-env", "BROKEN_KEY"], "BROKEN_KEY is not printable ASCII"),
        (["--url", "http://127.0.0.1:9", "--header", f"no colon {KEY}"], "--header 1 is not 'NAME: VALUE'"),
        (["--url", "http://127.0.0.1:9", "--header", "A: b", "--header", f"X: {KEY}\r\nY: z"], "--header 2 is not 'NAME: VALUE'"),
        (["--url", "http://127.0.0.1:9", "--header", "Content-Length: 3"], "a field that the client sets itself"),
        (["--url", "http://127.0.0.1:9", "--endpoint", "chat", "--prompts", "tokens"], "--endpoint chat takes no token ids"),
        (["--endpoint", "chat"], "are for --url"),
        (["--url", f"https://me:{KEY}@host/v1"], "without user, password"),
        (["--url", f"https://host/v1?key={KEY}"], "without user, password"),
        (["--url", "https://a..b/v1"], "--url: "),
        (["--url", "https://host:99999/v1"], "--url: "),
    ],
)
def test_wrong_requests_are_one_line_without_the_secret(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKEN_KEY", f"{KEY}\nX: y")
    result = invoke(*arguments, "--model", "m", "-o", str(tmp_path))
    assert isinstance(result.exception, UsageError)
    assert says in str(result.exception)
    assert "\n" not in str(result.exception)
    assert KEY not in str(result.exception)
    assert list(tmp_path.iterdir()) == []


def test_a_text_that_fails_midway_is_an_error_like_any_other(tmp_path: Path) -> None:
    with in_thread(ToyServer(tell="total", manners="drop")) as url:
        result = measured(url, tmp_path, "--prompts", "text")
    assert isinstance(result.exception, SimctlError)
    assert "broken off" in str(result.exception)
