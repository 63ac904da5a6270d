"""Summaries that people paste say rates and means; what they say and what is assumed of them is kept apart."""

import pytest

from calibrate.logs.pasted import cards_of, is_pasted, pasted_log
from calibrate.logs.read import read_log
from sim.errors import UsageError

LLAMA_BENCH = """
| model                  |     size | params | backend | ngl |  test |              t/s |
| ---------------------- | -------: | -----: | ------- | --: | ----: | ---------------: |
| llama 8B Q4_K - Medium | 4.58 GiB | 8.03 B | CUDA    |  99 | pp512 |  4096.00 ± 40.50 |
| llama 8B Q4_K - Medium | 4.58 GiB | 8.03 B | CUDA    |  99 | tg128 |    125.00 ± 0.36 |
"""
GUIDELLM = """
  Benchmark| Start Time| End Time| Duration (s)| Comp| Inc| Err| Comp| Inc| Err| Comp| Inc| Err|   Comp| Inc| Err|  Comp| Inc| Err
concurrent@16| 16:17:58| 16:18:58| 60.0| 640| 0| 0| 1024.0| 0.0| 0.0| 96.0| 0.0| 0.0| 655360| 0| 0| 61440| 0| 0
  Benchmark| Per Second| Concurrency| mean| mean| mean| median| p99| mean| median| p99| mean| median| p99| mean| median| p99
concurrent@16| 17.0| 16.00| 1632.0| 19000.0| 0.90| 0.90| 1.10| 298.0| 290.0| 400.0| 6.3| 6.3| 7.0| 6.2| 6.2| 7.0
"""
VLLM = """
============ Serving Benchmark Result ============
Successful requests:                     100
Maximum request concurrency:             8
Total input tokens:                      51200
Total generated tokens:                  12800
Mean TTFT (ms):                          45.10
Mean TPOT (ms):                          7.20
"""


@pytest.mark.parametrize(
    ("text", "clients", "prompt", "output", "stated"),
    [
        (LLAMA_BENCH, 1, 512, 128, {"ttft_s": 0.125, "tpot_s": 0.008}),
        (GUIDELLM, 16, 1024, 96, {"ttft_s": 0.298, "tpot_s": 0.0063}),
        (VLLM, 8, 512, 128, {"ttft_s": 0.0451, "tpot_s": 0.0072}),
        ("41 tok/s on 4 x 3090", 1, 512, 256, {"tpot_s": 1 / 41}),
        ("we get 1,600 tokens/s with 32 users on an RTX 4090", 32, 512, 256, {"tpot_s": 0.02}),
    ],
    ids=["llama-bench", "guidellm", "vllm", "line", "users"],
)
def test_rates_and_means_are_read(text, clients, prompt, output, stated):
    found = pasted_log(text, {}).experiment
    assert (found.clients, int(found.prompt_tokens[0]), int(found.output_tokens[0])) == (clients, prompt, output)
    assert {name: found.stated[name] for name in stated} == pytest.approx(stated)
    assert ("ttft_s" in found.stated) == ("ttft_s" in stated)


@pytest.mark.parametrize(
    ("text", "cards"),
    [
        ("41 tok/s on 4 x 3090", ("3090", 4)),
        ("120 t/s on an RTX 4090", ("RTX 4090", 1)),
        ("30 tok/s on H100", ("H100", 1)),
        ("4 x 3090", None),
    ],
)
def test_a_line_names_its_cards(text, cards):
    assert cards_of(text) == cards


def test_other_texts_are_no_summaries():
    assert not is_pasted("my server is slow")
    assert pasted_log("arrival_s,prompt_tokens\n0,1\n", {}) is None
    with pytest.raises(UsageError, match="both needed"):
        pasted_log(GUIDELLM.split("  Benchmark| Per")[0], {})


def test_a_summary_in_a_file_is_read_alike(tmp_path):
    path = tmp_path / "bench.txt"
    path.write_text(LLAMA_BENCH)
    assert read_log(path).experiment.stated == pasted_log(LLAMA_BENCH, {}).experiment.stated
