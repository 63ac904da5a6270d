"""A running vLLM server, measured by URL: the file is validated, learnt from, and what was learnt simulates its load."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli import run
from tests.vllm_servers import MODEL, deployment_words, vllm_servers

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[str]]]:
    """What `measure --url` wrote of a real server, and the options that say what ran there."""
    folder = tmp_path_factory.mktemp("real")
    with vllm_servers(folder, 1) as (server,):
        words = ["--url", server.url, "--model", MODEL, "--vocab-size", "8000", "--rates", "1,2", "--budget-s", "75"]
        done = run("measure", "--hw", "cpu", "--suite", "served", *words, "-o", str(folder))
    assert done.code == 0, done.stderr
    return folder / f"served_{MODEL}_url.nc", deployment_words(folder)


def test_validate_replays_it_with_the_limits_that_the_server_told(measured: tuple[Path, list[str]]) -> None:
    file, words = measured
    done = run("validate", "--run", str(file), *words, "--log-option", "kv-dtype=fp32", "--draws", "4")
    assert done.code in (0, 1), done.stderr  # a busy machine leaves the bounds
    assert "vllm 0." in done.stdout
    assert "the server reports num_gpu_blocks" in done.stdout
    assert "block_size 128" in " ".join(done.stdout.split())


def test_what_is_learnt_from_it_simulates_its_load(measured: tuple[Path, list[str]], tmp_path: Path) -> None:
    file, words = measured
    posterior = tmp_path / "mine.nc"
    # --allow-unconverged: on a busy machine medians scatter by more than the 15 % within which a log must be reproduced
    asked = ["--log-option", "kv-dtype=fp32", "--out", str(posterior), "--allow-unconverged", "--json"]
    done = run("learn", str(file), *words, *asked)
    assert done.code == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["rhat_max"] <= 1.01
    replayed = {row["figure"]: row for row in report["replayed"]}
    for figure in ("p50 TTFT", "p50 TPOT", "p50 E2EL"):
        assert replayed[figure]["simulated_s"] == pytest.approx(replayed[figure]["measured_s"], rel=0.4)
    load = ["--num-prompts", "24", "--request-rate", "2", "--random-input-len", "32", "--random-output-len", "32"]
    done = run("simulate", *words, "--kv-dtype", "fp32", "--posterior", str(posterior), *load, "--json")
    assert done.code == 0, done.stderr
    simulated = json.loads(done.stdout)
    assert simulated["median_tpot_ms"] == pytest.approx(1e3 * replayed["p50 TPOT"]["measured_s"], rel=0.5)
