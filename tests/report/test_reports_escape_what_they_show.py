"""Names with markup, numbers that are none, and very long texts come out as text, whole and bounded."""

import json
import shutil

import h5py
import numpy as np
import pytest

from tests.report.results import page_of, results

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\n{{7*7}}"


def check(text, page, count):
    assert sum(tag == "script" for tag, _ in page.tags) == count + 2  # a picture each, the library, and what draws them
    assert all(tag != "img" for tag, _ in page.tags)
    assert "<script>alert" not in text
    assert "49" not in json.dumps([attrs for _, attrs in page.tags if "onerror" in str(attrs)])


def test_a_plan_of_hostile_names(tmp_path):
    plan = json.loads(results()["plan"].read_text())
    plan["model"], plan["slo"], plan["conclusion"], plan["rates"] = EVIL, [EVIL], EVIL * 1000, EVIL
    plan["workload"] = {EVIL: EVIL, "huge": "x" * 10**6}
    plan["skipped"] = {f"{EVIL} {i}": EVIL for i in range(2000)}
    for point in [plan["winner"], *plan["front"]]:
        point["choice"] = EVIL
    plan["front"] *= 500
    plan["reasons"], plan["usd_per_mtok"] = [EVIL * 100] * 20, {EVIL: float("nan")}
    plan["cost_shares"] = {EVIL: float("nan"), "weights": 0.5}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    text, page = page_of(tmp_path / "plan.html", tmp_path / "plan.json")
    check(text, page, len(page.pictures()))
    assert len(text.encode()) < 1_500_000


def test_a_run_of_hostile_names(tmp_path):
    shutil.copytree(results()["run"], tmp_path / "run")
    with h5py.File(tmp_path / "run" / "run.nc", "r+") as file:
        for name in ("model", "gpu", "rates_basis", "rates_scope", "host_basis"):
            file.attrs[name] = EVIL * 50
        names = np.array([f"{EVIL}{i}".encode() for i in range(len(file["request_id"]))])
        scales = [file["request_id"].dims[0][0]]
        del file["request_id"]
        file.create_dataset("request_id", data=names.astype(object), dtype=h5py.string_dtype()).dims[0].attach_scale(scales[0])
    text, page = page_of(tmp_path / "run.html", tmp_path / "run")
    check(text, page, len(page.pictures()))


def test_claims_of_hostile_names(tmp_path):
    claims = json.loads(results()["claims"].read_text())
    for i, claim in enumerate(claims):
        claim |= dict.fromkeys(("name", "published", "ours", "how", "unit"), EVIL * 100) | {"report": f"{i % 3} {EVIL}"}
    (tmp_path / "claims.json").write_text(json.dumps(claims * 100))
    text, page = page_of(tmp_path / "claims.html", tmp_path / "claims.json")
    check(text, page, len(page.pictures()))
    assert len(text.encode()) < 3_000_000


@pytest.mark.parametrize("hidden", ["finish_s", "first_token_s", "draw_quantile_ms"])
def test_numbers_that_are_none(hidden, tmp_path):
    shutil.copytree(results()["run"], tmp_path / "run")
    with h5py.File(tmp_path / "run" / "run.nc", "r+") as file:
        file[hidden][...] = float("nan")
    _, page = page_of(tmp_path / "run.html", tmp_path / "run")
    assert "NaN" not in "".join(json.dumps(picture) for picture in page.pictures())
