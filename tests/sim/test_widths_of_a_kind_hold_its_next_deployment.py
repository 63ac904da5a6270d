"""The width of a kind of serving: a Student t around the errors of its deployments, wider and heavier where fewer were measured."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from sim.errors import SimctlError
from sim.rates.kinds import ORDINARY, Error, Seen, Width, by_metric, ordinary, packaged_seen, t_factors, width, widths, without
from sim.rates.load import load_rates, scope_notes, widened
from sim.specs.gpus import get_gpu
from sim.specs.lora import Lora
from sim.specs.models import get_model
from sim.study.deployment import Deployment, Limits


def seen_as(errors):
    return [Error(abs(float(b)), float(b)) for b in errors]


def test_a_kind_that_leans_is_predicted_to_lean_on():
    """Servers of a kind that are all slower than predicted, alike; without a lean, or of two servers alone, nothing is moved."""
    leaning, level = seen_as([0.20, 0.22, 0.18, 0.21, 0.19]), seen_as([0.20, -0.22, 0.18, -0.21, 0.01])
    found = width(leaning, 0.05)
    assert found.mean == pytest.approx(0.2 * 5 / 6)
    assert found.sd < width([Error(b.rms) for b in leaning], 0.05).sd
    assert [width(errors, 0.05).mean for errors in (level, leaning[:2])] == [0.0, 0.0]


def test_a_mean_is_seldom_taken_of_kinds_that_do_not_lean():
    rng = np.random.default_rng(2)
    assert np.mean([width(seen_as(0.1 * rng.standard_normal(5)), 0.1).mean != 0.0 for _ in range(1000)]) < 0.1


def test_a_mean_moves_medians_and_draws_alike_and_is_said(monkeypatch):
    lora = Deployment(get_model("Llama-3.1-8B"), get_gpu("H100"), limits=Limits(lora=Lora(16, 4)))
    level = [each._replace(e2el=Error(each.e2el.rms), ttft=Error(each.ttft.rms)) for each in packaged_seen()]
    leans = {"e2el": Error(0.1, 0.09), "ttft": Error(0.15, 0.14)}
    leaning = [each._replace(**leans) if each.kind == "adapters" else each for each in packaged_seen()]
    monkeypatch.setattr("sim.rates.load.packaged_seen", lambda: leaning)
    moved, still = load_rates(lora), load_rates(lora, seen=level)
    mean = widths("adapters", leaning)[0].mean
    assert mean > 0.05
    assert moved.point.beta == pytest.approx(still.point.beta * np.exp(-mean))
    assert np.median(moved.draws.beta) == pytest.approx(np.median(still.draws.beta) * np.exp(-mean), rel=0.01)
    (note,) = (note for note in scope_notes(lora, moved) if "adapters" in note)
    assert note.startswith(f"slower by {100 * np.expm1(mean):.2g} % (prompts by ")


def test_another_engine_has_its_own_overhead_and_no_mean():
    seen = [Seen("engine", str(i), *[Error(0.2, 0.2)] * 2) for i in range(5)] + [Seen("tp", "a", *[Error(0.05, 0.0)] * 2)]
    assert [each.mean for each in widths("engine", seen)] == [0.0, 0.0]


def test_a_kind_hides_its_own_scale_as_it_is_measured():
    errors = seen_as(np.random.default_rng(0).normal(0.0, 0.2, 400))
    none, few, many = (width(errors[:n], 0.05) for n in (0, 3, 400))
    assert none == Width(0.05, 3.0, 0)
    assert many.sd == pytest.approx(0.2, rel=0.1)
    assert few.dof < many.dof


def test_the_next_deployment_lies_in_the_interval_nine_times_in_ten():
    """Kinds whose scales are drawn as declared: each kind's fourth error against the width by three, the kinds' common scale known."""
    rng, held = np.random.default_rng(1), []
    for _ in range(2000):
        errors = 0.1 * np.sqrt(3.0 / rng.chisquare(3.0)) * rng.standard_normal(4)
        known = width(seen_as(errors[:3]), 0.1)
        held.append(abs(errors[3] - known.mean) <= known.sd * stats.t.ppf(0.95, known.dof))
    assert np.mean(held) == pytest.approx(0.9, abs=0.02)


def test_the_scale_of_other_kinds_holds_a_new_kind_nine_times_in_ten_and_no_more():
    """Eight kinds of 20 deployments whose scales are drawn as declared; the first deployment of a ninth."""
    rng, held = np.random.default_rng(4), []
    for _ in range(800):
        scales = 0.1 * np.sqrt(3.0 / rng.chisquare(3.0, 9))
        errors = scales[:, None] * rng.standard_normal((9, 20))
        seen = [Seen(f"kind {i}", str(j), *[Error(abs(b), b)] * 2) for i, row in enumerate(errors[:8]) for j, b in enumerate(row)]
        ((_, common), *_) = by_metric("new", seen)
        held.append(abs(errors[8, 0]) <= width((), common).sd * stats.t.ppf(0.95, 3.0))
    assert np.mean(held) == pytest.approx(0.9, abs=0.04)


@pytest.mark.parametrize("metric", ["e2el", "ttft"])
def test_measured_deployments_lie_in_the_interval_without_them(metric):
    """Each left out alone, and each kind left out whole."""
    alone, whole, of_kinds = [], [], [each for each in packaged_seen() if each.kind != ORDINARY]
    for each in of_kinds:
        error, kin = getattr(each, metric).rms, [s for s in of_kinds if s.kind == each.kind and s != each]
        ((_, common), *_) = by_metric(each.kind, [s._replace(e2el=getattr(s, metric)) for s in of_kinds])
        for known, held in ((width([Error(getattr(s, metric).rms) for s in kin], common), alone), (width((), common), whole)):
            held.append(error <= known.sd * stats.t.ppf(0.95, known.dof))
    assert min(np.mean(alone), np.mean(whole)) >= 0.85


def test_what_ordinary_servers_are_off_by_is_not_taken_twice():
    """It is in the errors of a kind, and in every answer without one: variances add up to what was seen."""
    kinds = [Seen("tp", name, Error(0.1), Error(0.2)) for name in "abc"]
    usual = [Seen(ORDINARY, "a", Error(0.02), Error(0.09)), Seen(ORDINARY, "b", Error(0.08), Error(0.04))]
    assert ordinary(kinds + usual) == pytest.approx((0.04, 0.06))  # geometric means
    (steps, more), (all_steps, all_more) = widths("tp", kinds + usual), widths("tp", kinds)
    assert steps.sd**2 + 0.04**2 == pytest.approx(all_steps.sd**2)
    assert steps.sd**2 + more.sd**2 + 0.06**2 == pytest.approx(all_steps.sd**2 + all_more.sd**2)
    hidden = [*kinds, Seen(ORDINARY, "a", Error(0.5), Error(0.9))]
    assert [each.sd for each in widths("tp", hidden)] == [0.0, 0.0]


def test_without_it_deployments_left_out_are_predicted_better_and_as_many_are_inside():
    """Each deployment's mean error by the others of its kind, beside what an ordinary server is off: narrower, and likelier."""
    of_kinds, usual = [each for each in packaged_seen() if each.kind != ORDINARY], ordinary(packaged_seen())[0]
    apart = stats.norm.ppf((np.arange(2000) + 0.5) / 2000)

    def judged(seen):
        score, inside = 0.0, 0
        for each in of_kinds:
            steps, _ = widths(each.kind, [s for s in seen if s != each])
            drawn = np.log(t_factors(steps, 2000, [0])) + steps.mean
            score += np.log(np.mean(stats.norm.pdf(each.e2el.mean, drawn, usual)))
            low, high = np.quantile(drawn + usual * np.random.default_rng(1).permutation(apart), [0.05, 0.95])
            inside += low <= each.e2el.mean <= high
        return score, inside / len(of_kinds)

    (score, inside), (twice, _) = judged(packaged_seen()), judged(of_kinds)
    assert score > twice + 2.0
    assert 0.85 <= inside <= 0.97


def test_a_deployment_is_left_out_with_its_kin_on_other_gpus():
    lora = Deployment(get_model("Llama-3.1-8B"), get_gpu("H200"), limits=Limits(lora=Lora(16, 4)))
    gone = set(packaged_seen()) - set(without(lora, packaged_seen()))
    assert {(each.kind, each.model.lower()) for each in gone} == {("adapters", "llama3.1-8b")}


def test_without_any_measured_deployment_nothing_is_wider():
    assert [each.sd for each in widths("drafts", ())] == [0.0, 0.0]


def test_an_absent_file_says_what_writes_it(monkeypatch, tmp_path):
    monkeypatch.setattr("sim.rates.kinds.package_path", lambda _, name: tmp_path / name)
    packaged_seen.cache_clear()
    try:
        with pytest.raises(SimctlError, match=r"kinds.json: .*`python -m studies.kinds_seen OUT.json` writes it"):
            packaged_seen()
    finally:
        packaged_seen.cache_clear()


def test_factors_are_a_t_of_median_one():
    drawn = np.log(t_factors(Width(0.1, 6.0, 3), 4001, [0]))
    assert np.median(drawn) == pytest.approx(0.0, abs=1e-3)
    assert np.quantile(drawn, 0.95) == pytest.approx(0.1 * stats.t.ppf(0.95, 6.0), rel=0.03)


def test_a_kind_widens_answers_and_is_named_with_its_width():
    home, lora = (Deployment(get_model("Llama-3.1-8B"), get_gpu("H100"), limits=limits) for limits in (Limits(), Limits(lora=Lora(16, 4))))
    known, wider = load_rates(home), load_rates(lora)
    assert np.std(np.log(wider.draws.c0_s)) > np.std(np.log(known.draws.c0_s))
    (note,) = (note for note in scope_notes(lora, wider) if "adapters" in note)
    assert f"{widths('adapters', packaged_seen())[0].sd:.2g}" in note
    assert not any("were off:" in note for note in scope_notes(home, known))


def width_of(tp, **more):
    rates = load_rates(Deployment(get_model("Qwen3-14B"), get_gpu("H100"), tp=tp), **more)
    return float(np.std(np.log(rates.draws.beta))), scope_notes(Deployment(get_model("Qwen3-14B"), get_gpu("H100"), tp=tp), rates)


def test_a_number_of_gpus_is_a_kind_only_where_the_rates_hold_none_of_it():
    """Grids over two H100s are packaged, none over four."""
    (two, said), (bare, _), (four, warned) = width_of(2), width_of(2, seen=()), width_of(4)
    assert two == bare < four
    assert [any("were off: tp" in note for note in notes) for notes in (said, warned)] == [False, True]


def test_rates_learnt_from_a_server_of_a_kind_are_not_widened_by_it_again():
    lora = Deployment(get_model("Llama-3.1-8B"), get_gpu("H100"), limits=Limits(lora=Lora(16, 4)))
    rates = load_rates(lora, seen=())
    learnt = replace(rates, source=replace(rates.source, kinds=("adapters",)))
    assert widened(learnt, lora) is learnt
    assert widened(rates, lora) is not rates
