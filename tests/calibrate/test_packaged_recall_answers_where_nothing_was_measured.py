"""The packaged recall model agrees with its fit and with the trials, and a what-if quotes it only where nothing was measured."""

import json

import numpy as np
import pytest

from sim.closed_form.fidelity import advice, risk_sentence
from sim.closed_form.recall import packaged_recall, parse_recall
from sim.errors import SimctlError, UsageError
from studies.needle_recall.needle_trials import published
from studies.needle_recall.package import write


def test_the_published_counts_lie_in_its_predictive_intervals():
    model, rng, inside = packaged_recall(), np.random.default_rng(0), []
    trials = published().trials
    for t in trials:
        recall = model.predict(t.model, t.haystack, t.context_tokens, t.k_blocks)
        low, high = np.quantile(rng.binomial(t.trials, recall), [0.05, 0.95])
        inside.append(low - 0.5 <= t.successes <= high + 0.5)
    assert sum(inside) >= len(trials) - 2


def test_more_budget_helps_and_more_context_hurts_in_every_draw():
    model = packaged_recall()
    for text in (*model.intercept, "a text never tried"):
        base = model.predict(None, text, 100_000, 16)
        assert (model.predict(None, text, 100_000, 32) >= base).all()
        assert (model.predict(None, text, 200_000, 16) <= base).all()
        assert ((base >= 0) & (base <= 1)).all()


def test_a_model_never_tried_is_wider():
    model = packaged_recall()
    known = next(iter(model.offset))
    widths = [high - low for low, _, high in (model.interval(m, "real prose", 32768, 8) for m in (known, None))]
    assert widths[0] < widths[1]


def test_the_blocks_that_a_recall_needs_find_it():
    model = packaged_recall()
    for text in model.intercept:
        low, k, high = model.blocks_for(None, text, 100_000, 0.9)
        assert low < k < high
        assert np.median(model.predict(None, text, 100_000, k)) == pytest.approx(0.9, abs=0.02)
        assert k < model.blocks_for(None, text, 200_000, 0.9)[1]


def test_the_sentence_says_what_was_measured_and_what_is_predicted():
    measured = risk_sentence(8, 32768, "Qwen2.5-7B-1M")
    assert "58/100" in measured
    assert "predicted" not in measured
    elsewhere = risk_sentence(8, 2**20, "Qwen2.5-7B-1M")
    assert elsewhere.startswith("k=8: not measured at this context; predicted 0.")
    assert "for a model never tried" in risk_sentence(8, 2**20, "Llama-3.1-8B")
    assert "not measured at this k, at any context; predicted" in risk_sentence(24, 4096)


def test_what_is_written_is_read_back_and_a_spoilt_file_is_refused(tmp_path):
    model = packaged_recall()
    write(tmp_path / "r.json", model)
    again = parse_recall((tmp_path / "r.json").read_text())
    np.testing.assert_array_equal(again.predict(None, "real prose", 70_000, 16), model.predict(None, "real prose", 70_000, 16))
    body = json.loads((tmp_path / "r.json").read_text())
    for change in ({"schema": "x"}, {"level": [1.0]}, {"level": "text"}, {"cell_sd": [float("nan")] * 250}, {"intercept": 3}):
        with pytest.raises(SimctlError, match="not a recall model"):
            parse_recall(json.dumps(body | change))
    with pytest.raises(UsageError, match="k >= 1"):
        model.predict(None, None, 0, 8)


def test_a_recommendation_names_the_recall_it_rests_on():
    verdict, recall = advice(8, 32768, "Qwen2.5-7B-1M")
    assert "58/100" in recall
    assert "only if" in verdict
    verdict, far = advice(8, 2**20, "Qwen2.5-7B-1M")
    assert "unmeasured, predicted" in far
    assert "real prose" in far
    assert "only if" in verdict
    assert advice(32, 32768, "Qwen2.5-7B-1M")[0] == "turn sparse attention on"


def test_an_easy_text_that_was_measured_does_not_speak_for_a_hard_one():
    """At 128K only looped text was tried (0.981): the advice stays what it is just before and beyond."""
    from sim.closed_form.fidelity import advice

    said = {context: advice(32, context, "Qwen2.5-7B-1M") for context in (2**17 - 1024, 2**17, 2**18)}
    assert len({verdict for verdict, _ in said.values()}) == 1
    assert all("real prose" in why for _, why in said.values())


def test_what_another_model_found_is_not_told_as_this_ones():
    from sim.closed_form.fidelity import advice

    assert "58/100" in advice(8, 2**15, "Qwen2.5-7B-1M")[1]
    assert "predicted" in advice(8, 2**15, "Llama-3.1-8B")[1]
