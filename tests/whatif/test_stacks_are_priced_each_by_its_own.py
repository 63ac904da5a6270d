"""A stack is priced by its own c0, c1, gather and link: own steps by what was measured, published rows by what was published."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from calibrate.measured_files import packaged_measurements
from calibrate.steps.decode_cells import read_decode
from sim import Deployment, UsageError, WhatIf, load_rates
from sim.cost.step_time import step_time_s
from sim.rates.posterior import stack_posterior
from sim.rates.stack_rates import transferred_priors
from sim.specs.gpus import get_gpu
from sim.specs.precision import Precision
from studies.score_sparse_served import served_ms
from tests.cli import run

ROOT = Path(__file__).resolve().parents[2] / "scenarios/data/measured"


def predicted(gpu, path):
    """(errors of the median, whether inside 5-95 %) of a file's steps at the rates that what-if takes."""
    question = WhatIf(Deployment.of("Qwen2.5-7B", gpu), 2**20, stack="kernels")
    rates, cells = question.rates(), read_decode(path, get_gpu(gpu)).cells
    work = cells.as_work()
    point = step_time_s(work, rates.point, np)
    drawn = step_time_s(work._replace(**{n: v[:, None] for n, v in work._asdict().items() if np.ndim(v)}), rates.draws, np)
    low, high = np.quantile(drawn, [0.05, 0.95], axis=1)
    return point / cells.step_s - 1, (low <= cells.step_s) & (cells.step_s <= high)


def own_files(gpu):
    return [path for path in packaged_measurements(get_gpu(gpu)) if path.name.startswith("decode")]


def test_every_own_decode_step_is_within_3_percent_in_the_median_and_inside_as_often_as_said():
    each = [predicted(gpu, path) for gpu in ("H100", "H200") for path in own_files(gpu)]
    for error, _ in each:
        assert np.median(np.abs(error)) <= 0.01
    inside = np.concatenate([found for _, found in each])
    assert len(inside) == 75 + 36 + 83
    assert 0.85 <= inside.mean() <= 0.97


@pytest.mark.parametrize("gpu", ["H100", "H200"])
def test_steps_of_another_machine_that_nothing_was_fitted_to_are_within_3_percent(gpu):
    error, inside = predicted(gpu, ROOT / f"kernels/kernels_{gpu.lower()}.nc")
    assert np.median(np.abs(error)) <= 0.012
    assert inside.mean() >= 0.8


def test_machines_never_measured_before_are_within_3_percent_and_together_inside_as_often_as_said():
    """Steps measured on 2026-11-28, of which no rate was learnt: two H100s and an H200. One H100 is quicker as a whole: 2 of 8 inside."""
    files = [("H100", "h100_decode_qwen2.5-7b"), ("H200", "h200_decode_qwen2.5-7b"), ("H100", "h100_decode_qwen2.5-7b_1")]
    each = [predicted(gpu, ROOT / f"validation/{name}.nc") for gpu, name in files]
    assert [len(error) for error, _ in each] == [50, 51, 8]
    for error, _ in each:
        assert np.median(np.abs(error)) <= 0.03
    assert 0.85 <= np.concatenate([inside for _, inside in each]).mean() <= 0.97


@pytest.mark.parametrize(("k", "measured"), [(8, 16_184), (16, 24_597), (32, 44_484)])
def test_crossovers_on_that_h200_are_within_15_percent(k, measured):
    answer = WhatIf(Deployment.of("Qwen2.5-7B", "H200"), 131072, (1,), (k,), stack="kernels", draws=50).answer()
    assert answer.crossovers[k, 1] == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize(("left_out", "other"), [("H100", "H200"), ("H200", "H100")])
def test_a_gpu_left_out_whole_is_predicted_from_the_other(left_out, other):
    """Rates of the kernels transferred from one GPU: what a card of one's own is answered with before it is measured."""
    chosen, cards = transferred_priors(get_gpu(left_out), Precision(), (other,))
    assert cards == [other]
    question = WhatIf(Deployment.of("Qwen2.5-7B", left_out), 2**20, stack="kernels")
    medians = question.rates().point.__class__(**{name: prior.median for name, prior in chosen.items()})
    for path in own_files(left_out):
        cells = read_decode(path, get_gpu(left_out)).cells
        error = step_time_s(cells.as_work(), medians, np) / cells.step_s - 1
        assert np.median(np.abs(error)) <= 0.09


@pytest.mark.parametrize(("k", "measured", "repeat"), [(8, 10_802, 12_684), (16, 15_685, None), (32, 30_493, None)])
def test_crossovers_of_one_stream_are_where_measured_steps_cross(k, measured, repeat):
    """Where dense and sparse steps of the H100 cross, linear between contexts; another H100's crossing of k = 8 lies 17 % beyond."""
    answer = WhatIf(Deployment.of("Qwen2.5-7B", "H100"), 131072, (1,), (k,), stack="kernels").answer()
    assert answer.crossovers[k, 1] == pytest.approx(measured, rel=0.15)
    low, high = answer.crossovers_90[k, 1]
    assert low <= measured <= high
    assert repeat is None or low <= repeat <= high


def test_published_rows_are_the_harness_own():
    """The H100 at k = 8 and 8K: 0.84 of dense; the A10 at 1M, k = 32: 6.1 tok/s, and 0.4 dense over the link."""
    h100 = WhatIf(Deployment.of("Qwen2.5-7B", "H100"), 8192, (1,), (8,), stack="published-harness").answer()
    found = {(o.policy.kind, o.policy.placement): o for o in h100.options}
    assert found["blocks", "hbm"].speedup.point == pytest.approx(0.84, abs=0.02)
    a10 = WhatIf(Deployment.of("Qwen2.5-7B-1M", "A10"), 2**20, (1,), (32,), stack="published-harness").answer()
    found = {(o.policy.kind, o.policy.placement): o for o in a10.options}
    assert found["blocks", "host"].tokens_per_s.point == pytest.approx(6.1, rel=0.03)
    assert found["dense", "host"].tokens_per_s.point == pytest.approx(0.4, rel=0.03)


def test_three_stacks_stand_side_by_side_and_a_slower_card_is_never_ahead():
    speeds = {}
    for gpu in ("A10", "L4"):
        out = run("what-if", "--ctx", "1M", "--gpu", gpu, "--k", "32")
        assert out.code == 0
        assert len(out.stdout.splitlines()) <= 24
        for stack in ("kernels", "vllm", "published-harness"):
            assert any(line.startswith(stack) for line in out.stdout.splitlines())
        said = json.loads(run("what-if", "--ctx", "1M", "--gpu", gpu, "--k", "32", "--json").stdout)
        every = said["options"] + [o for options in said["other_stacks"].values() for o in options]
        speeds[gpu] = {(o["stack"], o["policy"], o["kv_in"]): o["tokens_per_s_per_sequence"]["point"] for o in every if o["feasible"]}
    assert speeds["A10"].keys() == speeds["L4"].keys()
    assert {stack for stack, _, _ in speeds["A10"]} == {"kernels", "published-harness"}
    # the same link, half of the memory bandwidth: where the link is all, they are alike
    assert all(speeds["L4"][key] <= speeds["A10"][key] * (1.03 if key[1] == "dense" else 1.0) for key in speeds["A10"])


def test_the_default_is_the_kernels_where_sparse_attention_is_asked_for_and_they_run_the_model():
    def stack(model="Qwen2.5-7B", gpu="H100", context=8192, **more):
        return WhatIf(Deployment.of(model, gpu), context, **more).settled().runner.name

    assert stack() == "vllm"
    assert stack(context=2**17) == stack(ks=(8,)) == "kernels"
    assert stack(context=2**17, served=False) == stack("DeepSeek-V3", context=2**17) == stack(gpu="MI300X", ks=(8,)) == "vllm"


def test_rates_and_stack_may_not_contradict_each_other():
    deployment = Deployment.of("Qwen2.5-7B", "H100")
    with pytest.raises(UsageError, match="stack kernels at rates of vllm"):
        WhatIf(deployment, 8192, stack="kernels").answer(load_rates(deployment, draws=20))


BAD = {
    ("--gpu", "MI300X", "--stack", "kernels", "--ctx", "8K"): "MI300X is no CUDA GPU",
    ("--gpu", "H100", "--tp", "2", "--stack", "kernels", "--ctx", "8K"): "run on one GPU",
    ("--gpu", "H100", "--model", "Gemma-3-12B", "--stack", "kernels", "--ctx", "8K"): "dense decoders with full attention",
    ("--gpu", "H100", "--stack", "kernel", "--ctx", "8K"): "'kernel' is not one of",
    ("--gpu", "H100", "--ctx", "1K", "--k", "9"): "k = 9 is more than the 8 blocks of 128 that 1024 tokens have",
    ("--gpu", "H100", "--ctx", "8K", "--stack", "kernels", "--in-process"): "--in-process is of vllm",
    ("--gpu", "H100", "--tp", "2", "--ctx", "64K", "--map", "hbm"): "no map for Qwen2.5-7B-1M on H100",
}


@pytest.mark.parametrize("asked", BAD)
def test_what_no_stack_does_is_one_line(asked):
    out = run("what-if", *asked)
    assert (out.code, out.stdout) == (2, "")
    assert BAD[asked] in out.stderr
    assert out.stderr.count("\n") == 1


def test_a_posterior_of_another_card_or_of_kernels_is_refused_where_it_does_not_belong():
    wrong = run("what-if", "--ctx", "64K", "--gpu", "H100", "--posterior", str(stack_posterior(get_gpu("H200"), "kernels")))
    assert (wrong.code, wrong.stderr.count("\n")) == (1, 1)
    assert "learnt on H200, not on H100" in wrong.stderr
    simulated = run("simulate", "--gpu", "H100", "--num-prompts", "3", "--posterior", str(stack_posterior(get_gpu("H100"), "kernels")))
    assert simulated.stderr.count("\n") == 1
    assert "not of an engine" in simulated.stderr


def served_iterations():
    with (ROOT.parents[2] / "docs/data/sparse-served-iterations.csv").open(encoding="utf-8") as file:
        return [row for row in csv.DictReader(file) if row["k_blocks"] == "32"]


@pytest.mark.parametrize("row", served_iterations(), ids=lambda row: f"{row['decode_seqs']}x{row['context_tokens']}")
def test_iterations_of_a_server_with_the_kernels_are_within_10_percent_and_inside(row):
    """Measured after the formula stood; no rate was learnt from them."""
    batch, context = int(row["decode_seqs"]), int(row["context_tokens"])
    low, middle, high = served_ms(batch, context, row["model"], row["gpu"], 32)
    assert low <= float(row["median_ms"]) <= high
    assert middle == pytest.approx(float(row["median_ms"]), rel=0.1)


def test_a_server_with_the_kernels_reads_everything_as_the_server_does():
    of = {stack: WhatIf(Deployment.of("Qwen2.5-7B", "H100"), 131072, stack=stack, draws=50).answer() for stack in ("vllm", "vllm+kernels")}
    steps = {stack: next(o.step_s for o in a.options if o.policy.kind == "dense") for stack, a in of.items()}
    assert steps["vllm"] == steps["vllm+kernels"]


def test_a_stack_that_a_gpu_has_not_is_one_line():
    done = run("what-if", "--ctx", "256K", "--gpu", "A10", "--stack", "vllm+kernels")
    assert (done.code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "in vLLM they ran on H100 and H200" in done.stderr
