"""`simctl loop --gpu` over a pretend card of known rates: the steps it did not learn from are predicted better than before, in one file."""

import json
from dataclasses import replace

import numpy as np
import pytest

from calibrate.sampling import Diagnostics
from hw import jobs, machine
from simctl.campaign import loop_gpu
from tests.calibrate import test_kernels_rates_of_an_invented_card_are_recovered as invented
from tests.cli import run

card = invented.card
LEARNT = [c for c in invented.CELLS if c[2] in (8192, 32768)] + invented.CELLS[-3:]


class Tenths:
    """Draws that are no chance."""

    def __init__(self, count):
        self.uniform = lambda low, high: count / 10


class PretendCard:
    """Writes the files that `measure` would, at rates far from the card's datasheet; the first decode run ends early."""

    def __init__(self, path, folder):
        from calibrate.steps.random_rates import medians
        from sim.cost.step_time import step_time_s
        from sim.rates.stack_rates import stack_priors
        from sim.specs.gpus import get_gpu
        from sim.specs.precision import Precision

        gpu, rng = get_gpu(str(path)), np.random.default_rng(3)
        self.folder, self.asked = folder, []
        point = medians(stack_priors(gpu, Precision()))
        # Seven tenths of the datasheet's bandwidths, which the roofline shows and nothing before it does.
        rates = {"beta": 0.68 * 700e9, "beta_kv": 0.69 * 700e9, "link_bytes_per_s": 0.66 * 32e9, "kernel_s": 1.2 * point.kernel_s}
        self.truth = replace(point, **rates)
        invented.other_files(folder, Tenths(7))
        invented.decode_file(folder / "decode.nc")
        cells = invented.read_decode(folder / "decode.nc", gpu).cells
        self.times = np.asarray(step_time_s(cells.as_work(), self.truth, np)) * np.exp(0.004 * rng.standard_t(5, len(cells)))

    def __call__(self, job, out, *, resume=False, log=None):
        self.asked.append((job.suite, job.device, resume))
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"{job.stem}.nc"
        if job.suite != "decode":
            path.write_bytes((self.folder / f"{job.suite}.nc").read_bytes())
            return [path]
        kept = [i for i, c in enumerate(invented.CELLS) if resume or c in LEARNT]
        invented.decode_file(path, self.times, cells=kept)
        if not resume:
            (out / f"{job.stem}.journal.jsonl").write_text("{}\n")
        assert not resume or (out / f"{job.stem}.journal.jsonl").exists()
        return [path]


@pytest.fixture
def pretend(tmp_path, card, monkeypatch):
    (tmp_path / "files").mkdir()
    found = PretendCard(card, tmp_path / "files")
    monkeypatch.setattr(jobs, "run_apart", found)
    monkeypatch.setattr(machine, "resolve_device", lambda device: device)
    monkeypatch.setattr(loop_gpu, "find_spec", lambda name: None)
    monkeypatch.setattr(loop_gpu, "SAMPLED", {"draws": 150, "chains": 2})
    monkeypatch.setattr(Diagnostics, "require", lambda self: None)  # so few draws pass no gate
    return found


def test_steps_not_learnt_from_are_predicted_better_than_before(tmp_path, card, pretend):
    done = run("loop", "--gpu", "--hw", str(card), "-o", str(tmp_path / "out"))
    assert done.code == 0, done.stderr
    assert pretend.asked == [("floor", "cuda", False), ("host", "cuda", False), ("decode", "cuda", False), ("decode", "cuda", True)]
    found = json.loads((tmp_path / "out" / "loop.json").read_text())
    assert len(found["steps"]) == len(invented.CELLS) - len(LEARNT)
    off = {when: [abs(s[f"{when}_s"][1] / s["measured_s"] - 1) for s in found["steps"]] for when in ("before", "after")}
    assert np.median(off["after"]) < 0.01 < 0.05 < np.median(off["before"])
    assert np.mean([s["after_s"][0] <= s["measured_s"] <= s["after_s"][2] for s in found["steps"]]) >= 0.85
    assert f"after  median error {100 * np.median(off['after']):.1f} %" in done.stdout
    learnt = {r["name"]: r["posterior"] for r in found["rates"]}
    assert learnt["beta_kv"][0] * 0.99 <= pretend.truth.beta_kv <= learnt["beta_kv"][2] * 1.01
    report = run("report", str(tmp_path / "out" / "loop.json"), str(tmp_path / "out" / "posterior.nc"), "-o", str(tmp_path / "r.html"))
    assert report.code == 0, report.stderr
    assert "What was predicted of this card" in (tmp_path / "r.html").read_text()
    answer = run("what-if", "--ctx", "64K", "--gpu", str(card), "--posterior", str(tmp_path / "out" / "posterior.nc"), "--json")
    assert json.loads(answer.stdout)["question"]["stack"] == "kernels"


def test_what_it_cannot_do_is_one_line(tmp_path, card, monkeypatch):
    for given, why in {
        ("--hw", str(card)): "--hw is of --gpu",
        ("--gpu", "--model", "no-such"): "no-such",
        ("--gpu", "--hw", str(card)): "cuda",
    }.items():
        done = run("loop", *given, "-o", str(tmp_path / "none"))
        assert (done.code, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert why in done.stderr
        assert not (tmp_path / "none").exists()
