"""The formula's fingerprint is stable, and any change of a term changes it."""

import dataclasses

import pytest

import sim.rates.fingerprint
from sim.cost.step_time import Terms, step_terms
from sim.rates.fingerprint import formula_fingerprint


@pytest.fixture(autouse=True)
def fresh():
    formula_fingerprint.cache_clear()
    yield
    formula_fingerprint.cache_clear()


def test_it_is_the_same_every_time():
    first = formula_fingerprint()
    formula_fingerprint.cache_clear()
    assert formula_fingerprint() == first


@pytest.mark.parametrize("term", Terms._fields)
def test_a_changed_term_changes_it(term, monkeypatch):
    before = formula_fingerprint()
    formula_fingerprint.cache_clear()

    def altered(*args):
        terms = step_terms(*args)
        return terms._replace(**{term: getattr(terms, term) * (1 + 1e-6)})

    monkeypatch.setattr(sim.rates.fingerprint, "step_terms", altered)
    assert formula_fingerprint() != before


def test_a_changed_bill_changes_it(monkeypatch):
    before = formula_fingerprint()
    formula_fingerprint.cache_clear()
    probe = dataclasses.replace(sim.rates.fingerprint.PROBE, vocab=sim.rates.fingerprint.PROBE.vocab + 1)
    monkeypatch.setattr(sim.rates.fingerprint, "PROBE", probe)
    assert formula_fingerprint() != before
