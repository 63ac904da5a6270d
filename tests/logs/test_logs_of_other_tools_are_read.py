"""The same run in four layouts reads as the same requests; what is missing or impossible is named, with the request."""

import json

import numpy as np
import pytest

from calibrate.logs.read import read_log
from sim.errors import UsageError
from tests.logs.made_logs import as_aiperf, as_bench_serve, as_csv, as_guidellm, made, rates_at


@pytest.fixture(scope="module")
def truth():
    return made(rates_at({}), count=40)


def written(tmp_path, name, body):
    path = tmp_path / name
    path.write_text(body if isinstance(body, str) else json.dumps(body))
    return path


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("bench.json", as_bench_serve),
        ("guide3.json", lambda e: as_guidellm(e, 3)),
        ("guide4.json", as_guidellm),
        ("profile_export.jsonl", as_aiperf),
        ("log.csv", as_csv),
    ],
)
def test_every_layout_gives_the_same_requests(tmp_path, truth, name, make):
    log = read_log(written(tmp_path, name, make(truth)))
    e = log.experiment
    np.testing.assert_array_equal(e.prompt_tokens, truth.prompt_tokens)
    np.testing.assert_array_equal(e.output_tokens, truth.output_tokens)
    for column in ("arrival_s", "ttft_s", "e2el_s"):
        np.testing.assert_allclose(getattr(e, column), getattr(truth, column), rtol=1e-5, atol=1e-6)
    assert log.answered.all()


def test_a_bench_file_without_sending_times_says_what_it_does_instead(tmp_path, truth):
    drawn = read_log(written(tmp_path, "a.json", as_bench_serve(truth, start_times=None, request_rate=4.0)))
    assert "drawn anew at 4 requests/s" in drawn.notes[0]
    assert 1 / np.diff(drawn.experiment.arrival_s).mean() == pytest.approx(4, rel=0.5)
    closed = read_log(written(tmp_path, "b.json", as_bench_serve(truth, start_times=None, max_concurrency=8)))
    assert (closed.experiment.kind, closed.experiment.clients) == ("closed", 8)
    burst = read_log(written(tmp_path, "c.json", as_bench_serve(truth, start_times=None)))
    assert "all sent at once" in burst.notes[0]


def test_requests_given_up_are_kept_as_waits_not_as_times(tmp_path, truth):
    log = read_log(written(tmp_path, "log.csv", as_csv(truth, {3: 1.5, 7: 2.0})))
    assert (~log.answered).sum() == 2
    np.testing.assert_allclose(log.waited_s[[3, 7]], [1.5, 2.0])
    assert np.isnan(log.experiment.e2el_s[[3, 7]]).all()
    bench = as_bench_serve(truth)
    bench["errors"][5], bench["output_lens"][5] = "TimeoutError", 0
    path = written(tmp_path, "bench.json", bench)
    left_out, censored = read_log(path), read_log(path, timeout_s=30.0)
    assert (len(left_out.answered), len(censored.answered)) == (39, 40)
    assert "left out" in left_out.notes[0]
    assert censored.waited_s[5] == 30.0
    lines = as_aiperf(truth).splitlines()
    row = json.loads(lines[2])
    row["metadata"]["was_cancelled"] = True
    row["metadata"]["request_end_ns"] = row["metadata"]["request_start_ns"] + 4_000_000_000
    lines[2] = json.dumps(row)
    assert read_log(written(tmp_path, "p.jsonl", "\n".join(lines))).waited_s[2] == pytest.approx(4.0)
    guide = as_guidellm(truth)
    guide["benchmarks"][0]["requests"]["incomplete"] = [{"request_start_time": 1e9 + 1, "request_end_time": 1e9 + 6, "prompt_tokens": 50}]
    assert np.nanmax(read_log(written(tmp_path, "g.json", guide)).waited_s) == pytest.approx(5.0)


def bench(**changes):
    return lambda e: as_bench_serve(e, **changes)


def put(field, value, place=4):
    def change(e):
        body = as_bench_serve(e)
        body[field][place] = value
        return body

    return change


def guide(change):
    def spoil(e):
        body = as_guidellm(e)
        change(body["benchmarks"][0]["requests"]["successful"][4])
        return body

    return spoil


def air(change):
    def spoil(e):
        lines = as_aiperf(e).splitlines()
        row = json.loads(lines[4])
        change(row)
        lines[4] = json.dumps(row)
        return "\n".join(lines)

    return spoil


@pytest.mark.parametrize(
    ("name", "spoil", "says"),
    [
        ("a.json", bench(ttfts=None), "lacks ttfts: save it with --save-result --save-detailed"),
        ("a.json", bench(input_lens=None), "lacks input_lens"),
        ("a.json", bench(errors=[]), "differ in length"),
        ("a.json", put("ttfts", None), "request 4: lacks ttfts"),
        ("a.json", put("ttfts", -0.2), "request 4: ttft_s is -0.2 s"),
        ("a.json", put("ttfts", float("nan")), "request 4: ttft_s is not a number"),
        ("a.json", put("input_lens", 0), "request 4: prompt_tokens must be a whole number from 1 up"),
        ("a.json", put("itls", 7), "request 4: itls must be a list"),
        ("a.json", lambda e: {"benchmarks": []}, "lacks benchmarks"),
        ("a.json", guide(lambda r: r.pop("request_end_time")), "successful request 4: lacks end_time or request_end_time"),
        ("a.json", guide(lambda r: r.update(first_token_iteration=0.0)), "request 4: ttft_s is -1e"),
        ("a.json", guide(lambda r: r.pop("prompt_tokens")), "lacks prompt_tokens or input_tokens"),
        ("a.jsonl", air(lambda r: r["metrics"].pop("request_latency")), "line 5: lacks metrics.request_latency"),
        ("a.jsonl", air(lambda r: r["metrics"]["request_latency"].update(unit="h")), "line 5: metrics.request_latency is in 'h'"),
        ("a.jsonl", air(lambda r: r["metrics"]["request_latency"].update(value=0.001)), "line 5: its first token"),
        ("a.jsonl", air(lambda r: r.pop("metadata")), "line 5: lacks metadata"),
        ("a.json", lambda e: {"experiments": []}, "genai-perf's raw export has no prompt token counts"),
        ("a.json", lambda e: {"x": 1}, "not a result of vllm bench serve"),
        ("a.json", lambda e: "{", "not JSON"),
        ("a.csv", lambda e: as_csv(e).replace("finish_s", "end"), "lacks the column finish_s"),
        ("a.csv", lambda e: as_csv(e) + "1,2,3,x,5,\n", "line 42: first_token_s must be a number"),
        ("a.csv", lambda e: as_csv(e) + "1,2,3,0.5,5,\n", "line 42: ttft_s is -0.5 s"),
        ("a.csv", lambda e: "\n".join(as_csv(e).splitlines()[:10]), "9 answered requests are too few"),
    ],
)
def test_what_is_missing_or_impossible_is_named(tmp_path, truth, name, spoil, says):
    path = written(tmp_path, name, spoil(truth))
    with pytest.raises(UsageError) as error:
        read_log(path)
    assert says in str(error.value)
    assert str(error.value).startswith(name)
