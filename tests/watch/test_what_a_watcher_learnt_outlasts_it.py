"""`simctl watch --keep FILE` begins with what an earlier watcher of the same deployment learnt, the less sure the older it is."""

import json
from itertools import count

import numpy as np
import pytest

from sim import Deployment
from sim.errors import UsageError
from sim.twin.twin import Twin
from simctl.watch.kept import Kept
from tests.twin.metrics_server import serving, vllm_metrics
from tests.watch.test_watch_follows_servers_and_says_what_is_wrong import WHERE, watch

URL = "http://a:8000"


@pytest.fixture(scope="module")
def deployment():
    return Deployment.of("Llama-3.1-8B", "H100", max_model_len="auto")


def twin_of(*urls):
    return Twin(urls, None)


def learnt(slowness=1.3):
    twin = twin_of(URL, "http://b:8000")
    for _ in range(20):
        twin.servers[0].level = twin.servers[0].level.learn(10.0 * slowness, 10.0, 0.05)
    twin.servers[0].scatter["tpot"] = twin.servers[0].scatter["tpot"].learn(twin.servers[0].level, 10.0, (19.0, 20.0), 0.05)
    return twin


def width(level):
    return level.quantile(0.95) / level.quantile(0.05)


def test_the_next_watcher_knows_the_servers_that_it_has_seen(deployment, tmp_path):
    before, kept = learnt(), Kept(tmp_path / "kept.json", deployment)
    assert kept.keep(before) == ""
    after = twin_of("http://c:8000", URL)
    assert "1 of 2 servers are known, since 0 min ago" in kept.take_up(after)
    new, known = after.servers
    assert new.level.learnt == 0
    assert known.level.learnt == 20
    assert known.level.median == pytest.approx(before.servers[0].level.median, rel=1e-3) == pytest.approx(1.3, rel=0.01)
    np.testing.assert_allclose(known.scatter["tpot"].weights, before.servers[0].scatter["tpot"].weights, rtol=1e-3)


def test_what_is_old_is_known_less_well(deployment, tmp_path):
    kept = Kept(tmp_path / "kept.json", deployment)
    kept.keep(learnt())
    said = json.loads((tmp_path / "kept.json").read_text())
    (tmp_path / "kept.json").write_text(json.dumps(said | {"at": said["at"] - 3600}))
    fresh, old = learnt(), twin_of(URL)
    kept.take_up(old)
    assert width(old.servers[0].level) > 1.2 * width(fresh.servers[0].level)
    assert width(old.servers[0].level) < width(twin_of(URL).servers[0].level)


def test_no_file_yet_and_none_asked_for_are_nothing_known(deployment, tmp_path):
    assert Kept(tmp_path / "none.json", deployment).take_up(twin_of(URL)) == ""
    assert Kept(None, deployment).take_up(twin_of(URL)) == Kept(None, deployment).keep(learnt()) == ""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": "x/2"}, "of schema simctl-watch/1, not 'x/2'"),
        ({"of": "1 x A10"}, "was learnt of 1 x A10, not of 1 x H100 Llama-3.1-8B"),
        ({"at": "noon"}, "is not what a watcher has kept"),
        ({"servers": {URL: {"level": {"weights": [1.0], "learnt": 1}}}}, "is not what a watcher has kept"),
        ({"servers": []}, "is not what a watcher has kept"),
    ],
)
def test_another_file_is_one_line(deployment, tmp_path, change, says):
    kept = Kept(tmp_path / "kept.json", deployment)
    kept.keep(learnt())
    said = json.loads((tmp_path / "kept.json").read_text())
    (tmp_path / "kept.json").write_text(json.dumps(said | change))
    with pytest.raises(UsageError, match=says):
        kept.take_up(twin_of(URL))


def test_the_command_goes_on_where_it_ended(capsys, tmp_path):
    turns, file = count(1), str(tmp_path / "kept.json")
    with serving(lambda _: (200, vllm_metrics(5 * next(turns)))) as url:
        first = watch(capsys, url, *WHERE, "--for", "2.5", "--json", "--keep", file)
        second = watch(capsys, url, *WHERE, "--for", "0.5", "--json", "--keep", file)
    assert (first[0], first[2], second[0]) == (0, "", 0)
    assert "1 of 1 servers are known" in second[2]
    ended, began = (json.loads(out.splitlines()[at])["slowness"][url] for out, at in ((first[1], -1), (second[1], 0)))
    assert began == pytest.approx(ended, rel=0.02)
