"""KV pools beside start-up lines that others published, and what a tower for images takes of a server's memory."""

import pytest

from sim.deployment.memory import buffers, image_bytes, packaged_overhead
from sim.study.deployment import Deployment
from simctl.options.from_deployment import read_deployment
from studies.kv_pools import public_lines, scores
from tests.cli import run

HIDDEN, INNER, PATCH = 1152, 4304, 16  # Qwen3.6's tower


def deployed(**limits):
    return Deployment.of("Qwen3.6-27B-FP8", "RTX-PRO-6000", max_num_seqs=8, max_num_batched_tokens=8192, **limits)


def test_nine_of_ten_lines_that_nothing_was_learnt_from_lie_within_a_tenth():
    found = {(question, which): (n, off, share) for question, which, n, off, share in scores(public_lines())}
    n, off, share = found["tokens from the deployment", "even"]
    assert n >= 12
    assert off <= 0.03
    assert share >= 0.9


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize(("budget", "images"), [(2048, 1), (16384, 1), (32768, 2)])
def test_a_start_encodes_the_largest_images_that_its_budget_holds(tp, budget, images):
    patches = images * 16384 * 4
    wide = 2 * HIDDEN + 3 * 2 * PATCH * PATCH + 2 * INNER / tp  # input, its norm, pixels, and the MLP before and after its activation
    assert image_bytes(deployed().model, budget, tp) == 2 * patches * wide


def test_the_larger_of_the_two_peaks_is_kept_free():
    d = deployed()
    mlp, logits = buffers(d.model, 8192, 8)
    o = packaged_overhead()
    image = image_bytes(d.model, 8192)
    peaks = [m * mlp + c * logits for m, c in zip(o.mlp_copies, o.logit_copies, strict=True)]
    assert min(peaks) < image  # few sequences: images take more
    few, many = deployed().memory(), Deployment.of("Qwen3.6-27B-FP8", "RTX-PRO-6000", max_num_seqs=1024).memory()
    text_few = deployed(options={"language_model_only": True}).memory()
    text_many = Deployment.of("Qwen3.6-27B-FP8", "RTX-PRO-6000", max_num_seqs=1024, options={"language_model_only": True}).memory()
    assert few.activations > text_few.activations
    assert many.activations == pytest.approx(text_many.activations)  # the logits of 1,024 sequences take more than an image


def test_without_its_tower_a_server_has_its_bytes_for_kv():
    whole, text = deployed(), deployed(options={"language_model_only": True})
    assert whole.memory().weights - text.memory().weights == 2 * whole.model.tower_params
    assert whole.model.tower_params == whole.model.extra_params
    assert text.memory().free > whole.memory().free + 2 * whole.model.tower_params


def test_a_draft_head_has_no_tower_of_its_own():
    d = deployed(options={"draft_tokens": 3, "drafter": "mtp"})
    assert d.limits.draft.extra_params == d.limits.draft.tower_params == 0
    assert d.memory().weights - deployed().memory().weights < 2 * d.model.tower_params


@pytest.mark.parametrize(("model", "own"), [("Gemma-4-31B", False), ("Qwen3.6-27B", True)])
def test_gemmas_assistant_reads_the_kv_of_its_model(model, own):
    plain, drafting = (Deployment.of(model, "H200", options=options) for options in ({}, {"draft_tokens": 4, "drafter": "mtp"}))
    assert (drafting.layout.at_once(1e10, 8192) < plain.layout.at_once(1e10, 8192)) == own
    assert drafting.memory().weights > plain.memory().weights


def test_the_flag_of_a_file_says_that_text_alone_is_served(tmp_path):
    file = tmp_path / "serve.sh"
    file.write_text("#!/bin/sh\nvllm serve Qwen/Qwen3.6-27B-FP8 --language-model-only --max-num-seqs 8\n")
    assert read_deployment(file).options["engine_option"] == ["language_model_only=true"]


def test_other_engines_have_no_such_option():
    given = ("--model", "Qwen3-8B", "--gpu", "H100", "--engine", "sglang", "--engine-option", "language_model_only=true")
    done = run("simulate", *given, "--num-prompts", "2", "--draws", "0")
    assert (done.code, done.stdout) == (2, "")
    assert "sglang has no option 'language_model_only'" in done.stderr
